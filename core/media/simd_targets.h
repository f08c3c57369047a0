#pragma once

// Which Highway targets the kernels are built for; included before any of Highway's headers. The kernels count on
// blocks of 16 bytes, which the scalar target does not have and the scalable ones arrange differently. The emulated
// target stands in as the fallback: Highway distrusts GCC below 12.3 with it (a wrong vectorisation of one multiply),
// so the test that compares all targets runs it too.
#define HWY_BROKEN_EMU128 0
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
