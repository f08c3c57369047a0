#include "text/nfc.h"

#include <algorithm>

#include "text/unicode.h"

namespace stoker::text {
namespace {

// The Unicode Standard, section 3.12: Hangul syllables are arithmetic.
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

/// The primary composite of two characters, or 0.
char32_t composite_of(char32_t first, char32_t second) {
  if (first - kLBase < kLCount && second - kVBase < kVCount) {
    return kSBase + ((first - kLBase) * kVCount + (second - kVBase)) * kTCount;
  }
  if (first - kSBase < kSCount && (first - kSBase) % kTCount == 0 && second - (kTBase + 1) < kTCount - 1) {
    return first + (second - kTBase);
  }
  const auto& all = unicode::kCompositions;
  const auto at =
      std::lower_bound(all.begin(), all.end(), std::pair{first, second}, [](const auto& c, const auto& key) {
        return std::pair{c.first, c.second} < key;
      });
  return at != all.end() && at->first == first && at->second == second ? at->composite : 0;
}

void append_utf8(char32_t cp, std::string& out) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (cp < 0x80) {
    put(cp);
  } else if (cp < 0x800) {
    put(0xC0 | (cp >> 6));
    put(0x80 | (cp & 0x3F));
  } else if (cp < 0x10000) {
    put(0xE0 | (cp >> 12));
    put(0x80 | ((cp >> 6) & 0x3F));
    put(0x80 | (cp & 0x3F));
  } else {
    put(0xF0 | (cp >> 18));
    put(0x80 | ((cp >> 12) & 0x3F));
    put(0x80 | ((cp >> 6) & 0x3F));
    put(0x80 | (cp & 0x3F));
  }
}

}  // namespace

bool Nfc::is_quickly(std::string_view text) {
  unsigned last_combining = 0;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const auto lead = static_cast<unsigned char>(*p);
    if (lead < 0xCC) {  // below U+0300 nothing combines and nothing changes
      p += lead < 0x80 ? 1 : 2;
      last_combining = 0;
      continue;
    }
    if (lead >= 0xE4 && lead <= 0xE9) {  // U+4000 to U+9FFF likewise
      p += 3;
      last_combining = 0;
      continue;
    }
    unsigned n = 0;
    const char32_t cp = unicode::decode(p, n);
    p += n;
    const unsigned flags = unicode::flags_of(cp);
    if (flags & unicode::kNotQuick) return false;
    if (!(flags & unicode::kCombining)) {
      last_combining = 0;
      continue;
    }
    const unsigned combining = unicode::combining_class(cp);
    if (combining < last_combining) return false;
    last_combining = combining;
  }
  return true;
}

void Nfc::append(std::string_view text, std::string& out) {
  items_.clear();
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    unsigned n = 0;
    decompose(unicode::decode(p, n));
    p += n;
  }
  order();
  compose();
  for (const Item& item : items_) append_utf8(item.cp, out);
}

void Nfc::decompose(char32_t cp) {
  if (cp < 0xC0) {
    items_.push_back({cp, 0});
    return;
  }
  if (cp - kSBase < kSCount) {
    const char32_t s = cp - kSBase;
    items_.push_back({kLBase + s / (kVCount * kTCount), 0});
    items_.push_back({kVBase + s % (kVCount * kTCount) / kTCount, 0});
    if (s % kTCount != 0) items_.push_back({kTBase + s % kTCount, 0});
    return;
  }
  const auto& all = unicode::kDecompositions;
  const auto at =
      std::lower_bound(all.begin(), all.end(), cp, [](const auto& d, char32_t key) { return d.from < key; });
  if (at == all.end() || at->from != cp) {
    items_.push_back({cp, unicode::combining_class(cp)});
    return;
  }
  for (unsigned i = 0; i < at->length; ++i) {
    const char32_t part = unicode::kDecompositionPool[at->offset + i];
    items_.push_back({part, unicode::combining_class(part)});
  }
}

void Nfc::order() {
  for (auto first = items_.begin(); first != items_.end();) {
    if (first->combining == 0) {
      ++first;
      continue;
    }
    const auto last = std::find_if(first, items_.end(), [](const Item& i) { return i.combining == 0; });
    if (last - first > 1) {
      std::stable_sort(first, last, [](const Item& a, const Item& b) { return a.combining < b.combining; });
    }
    first = last;
  }
}

void Nfc::compose() {
  std::size_t n_kept = 0;
  std::size_t starter = items_.size();  // none yet
  unsigned last_combining = 0;          // of what stands between the starter and here; 0: nothing does
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item item = items_[i];
    if (starter < i && (starter + 1 == n_kept || last_combining < item.combining)) {
      if (const char32_t composite = composite_of(items_[starter].cp, item.cp)) {
        items_[starter].cp = composite;
        continue;
      }
    }
    if (item.combining == 0) starter = n_kept;
    last_combining = item.combining;
    items_[n_kept++] = item;
  }
  items_.resize(n_kept);
}

}  // namespace stoker::text
