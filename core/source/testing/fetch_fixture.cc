#include "source/testing/fetch_fixture.h"

#include <dirent.h>
#include <zlib.h>

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/log.h"

namespace stoker::testing {

using namespace std::chrono_literals;

std::string object_of(const std::string& target, std::size_t n_bytes) {
  std::string body;
  while (body.size() < n_bytes) body += target + ";";
  body.resize(n_bytes);
  return body;
}

std::string text(const FetchedObject& object) {
  return {reinterpret_cast<const char*>(object.bytes.data()), object.bytes.size()};
}

std::string url_of(int i) { return fmt::format("s3://b/{}", i); }
std::string target_of(int i) { return fmt::format("/b/{}", i); }

FetchSettings settings_for(const LoopbackServer& server) {
  FetchSettings s;
  s.storage.environment = [](const char*) { return std::optional<std::string>(); };
  s.storage.endpoint = server.endpoint();
  s.storage.access_key_id = "AKIDEXAMPLE";
  s.storage.secret_access_key = kSecret;
  s.storage.session_token = "SESSIONsession";
  s.retry = {1ms, 20ms};
  s.hedge_share = 0;
  s.jitter_seed = 7;
  return s;
}

std::unique_ptr<Fetcher> make(FetchSettings settings) {
  auto fetcher = Fetcher::create(std::move(settings));
  EXPECT_TRUE(fetcher.ok()) << fetcher.status().to_string();
  return std::move(fetcher).value();
}

FetchRequest request_for(std::string url, std::uint64_t priority) {
  FetchRequest request;
  request.url = std::move(url);
  request.priority = priority;
  return request;
}

ServerReply error_reply(int status, const std::string& code, const std::string& more) {
  ServerReply reply;
  reply.status = status;
  reply.body =
      "<?xml version=\"1.0\"?>\n<Error><Code>" + code + "</Code><Message>said the store</Message>" + more + "</Error>";
  return reply;
}

std::string packed(const std::string& text, int window_bits) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

ServerReply serve(const ServerRequest& request, std::size_t n_bytes) {
  return serve_bytes(request, object_of(request.target, n_bytes));
}

ServerReply serve_bytes(const ServerRequest& request, const std::string& whole) {
  const std::size_t n_bytes = whole.size();
  ServerReply reply;
  reply.headers = {{"ETag", "\"tag\""}};
  reply.body = whole;
  const auto range = request.headers.find("range");
  if (range == request.headers.end()) return reply;
  const std::size_t dash = range->second.find('-');
  const std::size_t first = std::stoul(range->second.substr(6, dash - 6));
  if (first >= n_bytes) {
    reply.status = 416;
    reply.body.clear();
    reply.headers = {{"Content-Range", fmt::format("bytes */{}", n_bytes)}};
    return reply;
  }
  const std::string last_text = range->second.substr(dash + 1);
  const std::size_t end = std::min(n_bytes, last_text.empty() ? n_bytes : std::stoul(last_text) + 1);
  reply.status = 206;
  reply.body = whole.substr(first, end - first);
  reply.headers.emplace_back("Content-Range", fmt::format("bytes {}-{}/{}", first, end - 1, n_bytes));
  return reply;
}

FetchDone Answers::slot(int i) {
  return [this, i](Result<FetchedObject> result) {
    {
      const std::lock_guard lock(mu_);
      ++n_calls_[i];
      order_.push_back(i);
      (result.ok() ? n_ok_ : n_failed_) += 1;
      results_.insert_or_assign(i, std::move(result));
    }
    left_.count_down();
  };
}

bool Answers::each_once() const {
  return std::all_of(n_calls_.begin(), n_calls_.end(), [](const auto& c) { return c.second == 1; });
}

void submit_all(Fetcher& fetcher, int n, Answers& answers) {
  for (int i = 0; i < n; ++i) fetcher.submit(request_for(url_of(i)), answers.slot(i));
}

Lines::Lines() {
  set_log_sink([this](LogLevel, std::string_view line) {
    const std::lock_guard lock(mu_);
    all_ += std::string(line) + "\n";
  });
}

Lines::~Lines() { set_log_sink({}); }

std::string Lines::all() const {
  const std::lock_guard lock(mu_);
  return all_;
}

int n_descriptors() {
  int n = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++n;
  closedir(folder);
  return n;
}

}  // namespace stoker::testing
