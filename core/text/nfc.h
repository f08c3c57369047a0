#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stoker::text {

/// Unicode's normalisation form C with the data of version 9.0, which the reference library froze: a mark with a
/// non-zero class that is younger counts as a starter and composes with nothing. Text is valid UTF-8 throughout.
class Nfc {
 public:
  /// Whether `text` is certainly in form C. False: it may be; call append() and compare.
  static bool is_quickly(std::string_view text);

  /// Appends form C of `text` to `out`. n log n in the length of the longest run of marks, linear otherwise.
  void append(std::string_view text, std::string& out);

 private:
  struct Item {
    char32_t cp;
    std::uint8_t combining;
  };
  void decompose(char32_t cp);
  void order();
  void compose();

  std::vector<Item> items_;  // kept between calls for its capacity
};

}  // namespace stoker::text
