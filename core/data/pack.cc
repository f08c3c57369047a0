#include "data/pack.h"
