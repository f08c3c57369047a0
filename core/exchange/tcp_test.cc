#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "exchange/exchange.h"
#include "exchange/tcp_server.h"
#include "exchange/tcp_store.h"
#include "exchange/wire.h"
#include "exec/owned_fd.h"

namespace stoker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::stop_token kNever;

std::unique_ptr<TcpServer> serve(std::uint16_t port = 0, milliseconds greeting_limit = seconds(5)) {
  return TcpServer::start({.address = "127.0.0.1",
                           .ports = {port},
                           .secret = "secret",
                           .max_bytes = 64 << 20,
                           .max_connections = 40,
                           .greeting_limit = greeting_limit})
      .value();
}

std::unique_ptr<ValueStore> client(std::uint16_t port, const std::string& secret = "secret",
                                   milliseconds limit = milliseconds(50)) {
  return make_tcp_store(
      {.host = "127.0.0.1", .ports = {port}, .secret = secret, .meet_limit = limit, .lost_limit = limit});
}

/// A peer without manners.
class RawPeer {
 public:
  explicit RawPeer(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  }
  void send(const std::string& bytes) const { ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// Waits until the other side hangs up; false after five seconds.
  bool is_cut_off() const {
    for (int i = 0; i < 50; ++i) {
      pollfd polled{fd_.get(), POLLIN, 0};
      if (::poll(&polled, 1, 100) <= 0) continue;
      char part[4096];
      if (::recv(fd_.get(), part, sizeof part, 0) <= 0) return true;
    }
    return false;
  }
  std::string receive(std::size_t n) const {
    std::string out(n, '\0');
    EXPECT_EQ(::recv(fd_.get(), out.data(), n, MSG_WAITALL), static_cast<ssize_t>(n));
    return out;
  }
  /// Shows that it knows the secret.
  void greet() const {
    const std::string nonce(wire::kNonceBytes, 'n');
    send(wire::framed(std::string(wire::kMagic) + nonce));
    const std::string theirs = receive(4 + wire::kNonceBytes + wire::kProofBytes).substr(4, wire::kNonceBytes);
    send(wire::framed(wire::proof_of("secret", "client", nonce, theirs)));
    receive(4);
  }

 private:
  const OwnedFd fd_;
};

TEST(TcpServer, StrangersAndOtherJobsAreRefused) {
  const auto server = serve();
  const auto other = client(server->port(), "another job's");
  const Status status = other->get({"run", 1, "x"}, milliseconds(0), kNever).status();
  EXPECT_EQ(status.reason(), Reason::kSettings);
  EXPECT_NE(status.message().find("another job"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("another job's"), std::string::npos);  // the secret is never said

  const std::string nonce(wire::kNonceBytes, 'n');
  const std::string greeting = wire::framed(std::string(wire::kMagic) + nonce);
  const std::string request = wire::framed(wire::encode({.key = {"run", 1, "x"}}));
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(100'000, '\0'), std::string(64, '\xff'),
        wire::framed("short"), wire::framed(std::string(wire::kMagic.size() + wire::kNonceBytes, 'x')), request,
        greeting + wire::framed(std::string(wire::kProofBytes, 'x')), greeting + request}) {
    const RawPeer peer(server->port());
    peer.send(bytes);
    EXPECT_TRUE(peer.is_cut_off()) << bytes.substr(0, 20);
  }
  EXPECT_EQ(client(server->port())->compare_set({"run", 1, "x"}, "", "v", kNever).value(), "v");
}

TEST(TcpServer, RanksThatSendNonsenseAreCutOff) {
  const auto server = serve();
  std::string huge;
  for (int i = 0; i < 4; ++i) huge.push_back('\xfe');
  std::string lying = wire::encode({.kind = wire::Request::Kind::kCompareSet, .key = {"run", 1, "x"}, .desired = "v"});
  lying[lying.size() - 5] = '\x7f';  // a length inside that is longer than the message
  for (const std::string& bytes : {huge + "abc", wire::framed("nonsense"), wire::framed(""), wire::framed(lying)}) {
    const RawPeer peer(server->port());
    peer.greet();
    peer.send(bytes);
    EXPECT_TRUE(peer.is_cut_off());
  }
}

TEST(TcpServer, SlowPeersHoldUpNobody) {
  const auto server = serve(0, milliseconds(200));
  const RawPeer silent(server->port());
  const RawPeer half(server->port());
  half.greet();
  half.send(std::string("\x20\0\0\0half", 8));
  const RawPeer deaf(server->port());  // asks for much and reads nothing
  deaf.greet();
  const auto good = client(server->port());
  ASSERT_TRUE(good->compare_set({"run", 1, "large"}, "", std::string(8 << 20, 'a'), kNever).ok());
  const std::string ask = wire::framed(wire::encode({.key = {"run", 1, "large"}}));
  for (int i = 0; i < 3; ++i) deaf.send(ask);
  EXPECT_EQ(good->compare_set({"run", 1, "x"}, "", "v", kNever).value(), "v");
  EXPECT_TRUE(silent.is_cut_off());
  EXPECT_EQ(good->get({"run", 1, "x"}, milliseconds(0), kNever).value(), "v");
}

TEST(TcpServer, MoreConnectionsThanItTakesAreClosed) {
  const auto server = serve();
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 40; ++i) {
    peers.push_back(std::make_unique<RawPeer>(server->port()));
    peers.back()->greet();
  }
  const RawPeer one_more(server->port());
  EXPECT_TRUE(one_more.is_cut_off());
  peers.pop_back();
  const auto later = client(server->port(), "secret", seconds(5));
  EXPECT_TRUE(later->compare_set({"run", 1, "x"}, "", "v", kNever).ok());
}

TEST(TcpStore, FindsRankZeroAgainAndSaysWhenItIsGone) {
  auto server = serve();
  const std::uint16_t port = server->port();
  const auto rank = client(port, "secret", seconds(5));
  ASSERT_TRUE(rank->compare_set({"run", 1, "x"}, "", "first", kNever).ok());
  server.reset();
  server = serve(port);  // the attempt after: nothing of the first is there
  EXPECT_EQ(rank->get({"run", 1, "x"}, milliseconds(0), kNever).value(), std::nullopt);
  const auto impatient = client(port);
  ASSERT_TRUE(impatient->get({"run", 1, "x"}, milliseconds(0), kNever).ok());
  server.reset();
  EXPECT_EQ(impatient->get({"run", 1, "x"}, milliseconds(0), kNever).status().reason(), Reason::kFetchConnect);
}

TEST(TcpStore, LooksForRankZeroAtEachPortOfTheJob) {
  const auto other = TcpServer::start({.address = "127.0.0.1", .ports = {0}, .secret = "another"}).value();
  const auto taken =
      TcpServer::start({.address = "127.0.0.1", .ports = {other->port(), 0}, .secret = "secret"}).value();
  ASSERT_NE(taken->port(), other->port());
  const auto rank =
      make_tcp_store({.host = "localhost", .ports = {1, other->port(), taken->port()}, .secret = "secret"});
  EXPECT_EQ(rank->compare_set({"run", 1, "x"}, "", "v", kNever).value(), "v");
  EXPECT_EQ(TcpServer::start({.address = "127.0.0.1", .ports = {other->port()}, .secret = "s"}).status().reason(),
            Reason::kSettings);
  const auto ports = ports_of_job("one job");
  EXPECT_EQ(ports, ports_of_job("one job"));
  EXPECT_NE(ports, ports_of_job("another job"));
}

TEST(TcpStore, StopsWhileItLooksForRankZero) {
  const auto rank = client(1, "secret", seconds(100));
  std::stop_source stop;
  std::latch waiting(1);
  std::jthread looks([&] {
    waiting.count_down();
    EXPECT_EQ(rank->get({"run", 1, "x"}, milliseconds(0), stop.get_token()).status().reason(), Reason::kStopped);
  });
  waiting.wait();
  const auto began = std::chrono::steady_clock::now();
  stop.request_stop();
  looks.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(1));
}

}  // namespace
}  // namespace stoker
