#pragma once

#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "source/source.h"
#include "source/testing/loopback_server.h"

namespace stoker::testing {

inline constexpr const char* kSecret = "TOPSECRETtopsecret/secret+key";

/// What the server holds under a target: different for each.
std::string object_of(const std::string& target, std::size_t n_bytes = 1000);
std::string text(const FetchedObject& object);

/// The objects of a test that needs many.
std::string url_of(int i);
std::string target_of(int i);

/// Impatient, without hedges (for tests that count requests), and blind to this machine's environment.
FetchSettings settings_for(const LoopbackServer& server);
std::unique_ptr<Fetcher> make(FetchSettings settings);
FetchRequest request_for(std::string url, std::uint64_t priority = 0);

/// As zlib packs it. @param window_bits  As for deflateInit2: 15 zlib, -15 bare, 31 gzip.
std::string packed(const std::string& text, int window_bits);

ServerReply error_reply(int status, const std::string& code, const std::string& more = "");
/// Serves every key; ranges as S3 does.
ServerReply serve(const ServerRequest& request, std::size_t n_bytes = 1000);
/// The same with the bytes of one's own.
ServerReply serve_bytes(const ServerRequest& request, const std::string& whole);

/// Answers of many requests, and when all are there.
class Answers {
 public:
  explicit Answers(int n) : left_(n) {}
  FetchDone slot(int i);
  void wait() { left_.wait(); }
  int n_ok() const { return n_ok_; }
  int n_failed() const { return n_failed_; }
  const std::vector<int>& order() const { return order_; }
  const Result<FetchedObject>& at(int i) const { return results_.at(i); }
  bool each_once() const;

 private:
  std::latch left_;
  std::mutex mu_;
  std::map<int, Result<FetchedObject>> results_;
  std::map<int, int> n_calls_;
  std::vector<int> order_;
  int n_ok_ = 0;
  int n_failed_ = 0;
};

/// The objects 0 to n - 1.
void submit_all(Fetcher& fetcher, int n, Answers& answers);

/// Catches the log while it lives.
class Lines {
 public:
  Lines();
  ~Lines();
  std::string all() const;

 private:
  mutable std::mutex mu_;
  std::string all_;
};

int n_descriptors();

}  // namespace stoker::testing
