#pragma once

#include "base/result.h"
#include "base/wire.h"
#include "data/lengths.h"

namespace stoker {

/// Pieces of the compact form of lengths, for whoever keeps some of them. Taking reads foreign bytes, as WireReader.

void put_reason(WireWriter& to, Reason reason);  ///< by its name: names do not change between versions, numbers may
Reason take_reason(WireReader& from);            ///< never kNone
void put_wish(WireWriter& to, const SizeWish& wish);
SizeWish take_wish(WireReader& from);
void put_rate(WireWriter& to, double rate);
double take_rate(WireReader& from);  ///< finite, not negative

}  // namespace stoker
