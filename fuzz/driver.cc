// Runs one fuzz target for a bounded time without libFuzzer: as an ordinary test, with any compiler, so that no target
// rots. It feeds the seeds, then seeds changed at random (bytes flipped, cut, doubled, spliced). There is no coverage
// feedback; that is what the build with STOKER_FUZZ is for.
//
//   NAME_fuzz [FOLDER_OR_FILE ...]      STOKER_FUZZ_SECONDS=1   STOKER_FUZZ_SEED=1

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kMaxInputBytes = 1 << 18;

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  bytes.resize(std::min(bytes.size(), kMaxInputBytes));
  return bytes;
}

std::vector<Bytes> read_seeds(int argc, char** argv) {
  std::vector<Bytes> seeds;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      seeds.push_back(read_file(argv[i]));
      continue;
    }
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());  // the same run from the same seed, whatever the file system's order
    for (const auto& path : paths) seeds.push_back(read_file(path));
  }
  return seeds;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random_() % n); }

  void change(Bytes& bytes, const Bytes& other) {
    switch (below(6)) {
      case 0:
        if (!bytes.empty()) bytes[below(bytes.size())] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        if (!bytes.empty()) bytes[below(bytes.size())] = static_cast<std::uint8_t>(below(256));
        break;
      case 2:
        bytes.resize(below(bytes.size() + 1));
        break;
      case 3:
        bytes.insert(at(bytes), static_cast<std::uint8_t>(below(256)));
        break;
      case 4: {  // a piece of another input
        const std::size_t from = below(other.size());
        const std::size_t n = below(std::min<std::size_t>(other.size() - from, 64) + 1);
        bytes.insert(at(bytes), other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + n));
        break;
      }
      default: {  // an interesting number, where a length might stand
        static constexpr std::uint8_t kEnds[] = {0x00, 0x7f, 0x80, 0xff};
        const std::uint8_t value = kEnds[below(4)];
        const std::size_t start = below(bytes.size());
        for (std::size_t i = start; i < std::min(start + 4, bytes.size()); ++i) bytes[i] = value;
      }
    }
    bytes.resize(std::min(bytes.size(), kMaxInputBytes));
  }

 private:
  Bytes::iterator at(Bytes& bytes) { return bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size() + 1)); }

  std::mt19937_64 random_;
};

double number_from(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

// Kept for whoever debugs a crash: a sanitizer ends the process inside the target.
void keep(const Bytes& bytes, const char* program) {
  std::ofstream(std::string(program) + ".last", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  const auto limit = std::chrono::duration<double>(number_from("STOKER_FUZZ_SECONDS", 1.0));
  const bool keeps_inputs = std::getenv("STOKER_FUZZ_KEEP") != nullptr;
  Mutator mutator(static_cast<std::uint64_t>(number_from("STOKER_FUZZ_SEED", 1)));
  std::vector<Bytes> seeds = read_seeds(argc, argv);
  if (argc > 1 && seeds.empty()) {
    std::fprintf(stderr, "no seed in the folders given\n");
    return 1;
  }
  seeds.emplace_back();

  std::size_t n_runs = 0;
  const auto run = [&](const Bytes& bytes) {
    if (keeps_inputs) keep(bytes, argv[0]);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    ++n_runs;
  };
  const auto end = std::chrono::steady_clock::now() + limit;
  for (const Bytes& seed : seeds) {
    run(seed);
    if (std::chrono::steady_clock::now() >= end) break;
  }
  while (std::chrono::steady_clock::now() < end) {
    Bytes bytes = seeds[mutator.below(seeds.size())];
    for (std::size_t n = 1 + mutator.below(8); n > 0; --n) mutator.change(bytes, seeds[mutator.below(seeds.size())]);
    run(bytes);
  }
  std::printf("%zu inputs\n", n_runs);
  return 0;
}
