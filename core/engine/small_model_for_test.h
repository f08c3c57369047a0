#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace stoker::testing {

inline constexpr int kMergesKept = 500;

/// The test model's tokenizer with its first merges only: the whole takes seconds to open under a sanitizer. By lines
/// of the file.
inline std::string cut_tokenizer(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::ostringstream out;
  enum class In { kHead, kVocab, kMerges } where = In::kHead;
  int n_lines = 0;
  const int n_vocab = 256 + kMergesKept;
  int n_added = 0;
  for (std::string line; std::getline(in, line);) {
    if (line == "    }," || line == "    ]") where = In::kHead;
    if (where == In::kVocab) {
      ++n_lines;
      if (n_lines == n_vocab && line.back() == ',') line.pop_back();
      if (n_lines > n_vocab) continue;
    } else if (where == In::kMerges) {
      ++n_lines;
      if (n_lines == 4 * kMergesKept) line = "      ]";
      if (n_lines > 4 * kMergesKept) continue;
    } else if (line.find("\"vocab\": {") != std::string::npos) {
      where = In::kVocab;
      n_lines = 0;
    } else if (line.find("\"merges\": [") != std::string::npos) {
      where = In::kMerges;
      n_lines = 0;
    } else if (where == In::kHead && line.starts_with("      \"id\": ")) {
      line = "      \"id\": " + std::to_string(n_vocab + n_added++) + ",";
    }
    out << line << '\n';
  }
  return out.str();
}

/// A checkpoint folder of the Qwen3-VL family without weights.
inline void write_small_model(const std::filesystem::path& testdata, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const char* name : {"preprocessor_config.json", "chat_template.jinja", "config.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(testdata / "qwen3-vl" / name, folder / name);
  }
  std::ofstream(folder / "tokenizer.json", std::ios::binary) << cut_tokenizer(testdata / "qwen3-vl" / "tokenizer.json");
}

}  // namespace stoker::testing
