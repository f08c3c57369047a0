#include "text/bpe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>

namespace stoker::text {
namespace {

/// A vocabulary of the bytes and random merges over few letters, so that ties, chains and unreachable entries are
/// common.
struct RandomModel {
  explicit RandomModel(unsigned seed) {
    std::mt19937 rng(seed);
    std::vector<std::string> words;
    for (int b = 0; b < 256; ++b) words.emplace_back(1, static_cast<char>(b));
    std::vector<std::int32_t> pool = {'a', 'b', 'c'};
    for (int i = 0; i < 60; ++i) {
      const std::int32_t left = pool[rng() % pool.size()], right = pool[rng() % pool.size()];
      const std::string joined = words[static_cast<std::size_t>(left)] + words[static_cast<std::size_t>(right)];
      if (joined.size() > 12) continue;
      auto at = static_cast<std::int32_t>(std::find(words.begin(), words.end(), joined) - words.begin());
      if (at == static_cast<std::int32_t>(words.size())) words.push_back(joined), pool.push_back(at);
      if (ranks.emplace(std::pair{left, right}, merges.size()).second) merges.push_back({left, right, at});
    }
    WordIndex index;
    for (std::size_t id = 0; id < words.size(); ++id) index.add(static_cast<std::int32_t>(id), words[id]);
    index.close();
    bpe = std::make_unique<Bpe>(Bpe::make(std::move(index), merges).value());
  }
  /// The definition, word for word.
  std::vector<std::int32_t> by_definition(const std::string& word) const {
    std::vector<std::int32_t> ids;
    for (const char c : word) ids.push_back(static_cast<unsigned char>(c));
    while (true) {
      std::size_t best_rank = std::numeric_limits<std::size_t>::max(), best = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = ranks.find({ids[i], ids[i + 1]});
        if (found != ranks.end() && found->second < best_rank) best_rank = found->second, best = i;
      }
      if (best_rank == std::numeric_limits<std::size_t>::max()) return ids;
      ids[best] = merges[best_rank].merged;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }
  std::vector<Merge> merges;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
  std::unique_ptr<Bpe> bpe;
};

TEST(Bpe, EqualsItsDefinitionAtEveryLength) {
  std::mt19937 rng(9);
  Bpe::Scratch scratch;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const RandomModel model(seed);
    for (std::size_t n = 1; n <= 140; ++n) {
      std::string word;
      while (word.size() < n) word += "aaabbc\xC3"[rng() % 7];
      std::vector<std::int32_t> merged, encoded;
      model.bpe->merge(word, merged, scratch);
      ASSERT_EQ(merged, model.by_definition(word)) << word << " seed " << seed;
      model.bpe->encode(word, encoded, scratch);
      ASSERT_EQ(encoded, merged) << word << " seed " << seed;
    }
  }
}

TEST(Bpe, RefusesAVocabularyWithoutAByte) {
  WordIndex words;
  words.add(0, "a");
  words.close();
  EXPECT_EQ(Bpe::make(std::move(words), {}).status().reason(), Reason::kTokenizer);
}

TEST(WordIndex, FindsWhatWasAddedAndNothingElse) {
  WordIndex words;
  for (int i = 0; i < 1000; ++i) words.add(2 * i, fmt::format("w{}", i));
  words.close();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(words.find(fmt::format("w{}", i)), 2 * i);
  EXPECT_EQ(words.find("w"), -1);
  EXPECT_EQ(words.find(""), -1);
  EXPECT_EQ(words.bytes_of(4), "w2");
  EXPECT_EQ(words.bytes_of(5), "");
  EXPECT_EQ(words.end_id(), 1999);
}

}  // namespace
}  // namespace stoker::text
