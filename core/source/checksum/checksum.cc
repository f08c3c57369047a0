#include "source/checksum/checksum.h"

#include <openssl/evp.h>

#include <array>

#include "source/checksum/crc.h"

namespace stoker {
namespace {

struct About {
  const char* name;
  std::size_t n_bytes;
  Crc crc;  // of the SHAs: unused
};

constexpr std::array<About, 5> kAbout = {{{"CRC64NVME", 8, Crc::k64Nvme},
                                          {"CRC32C", 4, Crc::k32c},
                                          {"CRC32", 4, Crc::k32},
                                          {"SHA256", 32, Crc::k32},
                                          {"SHA1", 20, Crc::k32}}};

const About& about(Checksum::Kind kind) { return kAbout[static_cast<std::size_t>(kind)]; }

bool is_base64(std::string_view text, std::size_t n_bytes) {
  const std::string_view padding = std::string_view("==").substr(0, (3 - n_bytes % 3) % 3);
  return text.size() == (n_bytes + 2) / 3 * 4 && text.ends_with(padding) &&
         text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") ==
             std::string_view::npos;
}

std::string to_base64(std::span<const unsigned char> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int n =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(n));
  return text;
}

}  // namespace

void Checksum::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

const char* Checksum::name() const { return about(kind_).name; }

std::optional<Checksum> Checksum::expect(Kind kind, std::string_view expected) {
  if (!is_base64(expected, about(kind).n_bytes)) return std::nullopt;
  Checksum checksum;
  checksum.kind_ = kind;
  checksum.expected_ = expected;
  if (kind == Kind::kSha256 || kind == Kind::kSha1) {
    checksum.digest_.reset(EVP_MD_CTX_new());
    const EVP_MD* method = kind == Kind::kSha256 ? EVP_sha256() : EVP_sha1();
    // A system whose policy forbids SHA-1 leaves the object unchecked, as if the store had said nothing.
    if (EVP_DigestInit_ex(checksum.digest_.get(), method, nullptr) != 1) return std::nullopt;
  }
  return checksum;
}

void Checksum::update(std::span<const std::byte> bytes) {
  if (digest_) {
    EVP_DigestUpdate(digest_.get(), bytes.data(), bytes.size());
  } else {
    crc_ = crc_of(about(kind_).crc, crc_, bytes);
  }
}

std::string Checksum::computed() const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> value{};
  const std::size_t n = about(kind_).n_bytes;
  if (digest_) {
    const std::unique_ptr<EVP_MD_CTX, Free> copy(EVP_MD_CTX_new());  // reading it would end it
    EVP_MD_CTX_copy_ex(copy.get(), digest_.get());
    EVP_DigestFinal_ex(copy.get(), value.data(), nullptr);
  } else {
    for (std::size_t i = 0; i < n; ++i) value[i] = static_cast<unsigned char>(crc_ >> (8 * (n - 1 - i)));
  }
  return to_base64({value.data(), n});
}

}  // namespace stoker
