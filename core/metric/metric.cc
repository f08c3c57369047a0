#include "metric/metric.h"
