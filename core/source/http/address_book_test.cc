#include "source/http/address_book.h"

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "source/testing/fetch_fixture.h"

namespace stoker {
namespace {

using namespace std::chrono_literals;
using namespace testing;

IpAddress ip(const char* text) { return IpAddress::parse(text).value(); }

// A book that has looked "h" up: its answers in turn, the last one again and again.
class Book {
 public:
  explicit Book(std::vector<std::vector<IpAddress>> answers)
      : answers_(std::move(answers)),
        book([this](const std::string&, const std::stop_token&) { return next(); }, clock) {
    look_up();
  }
  void look_up() {
    const int before = n_lookups_;
    clock.advance(AddressBook::kRefresh);
    book.release(book.pick("h", ip("1.1.1.1")));
    while (n_lookups_ == before) std::this_thread::yield();
    // The answer is in when a second host has been served after it.
    book.release(book.pick("other" + std::to_string(before), ip("1.1.1.1")));
    while (n_lookups_ == before + 1) std::this_thread::yield();
  }
  std::map<unsigned char, int> picks(int n) {
    std::map<unsigned char, int> count;
    for (int i = 0; i < n; ++i) ++count[book.pick("h", ip("1.1.1.1")).address.bytes[3]];
    return count;
  }

 private:
  std::vector<IpAddress> next() {
    const int i = n_lookups_++;
    if (i % 2 == 1) return {};  // of a host that only stands behind in the queue
    return answers_[std::min(static_cast<std::size_t>(i / 2), answers_.size() - 1)];
  }
  const std::vector<std::vector<IpAddress>> answers_;
  std::atomic<int> n_lookups_{0};

 public:
  FakeClock clock;
  AddressBook book;
};

using Count = std::map<unsigned char, int>;

TEST(AddressBook, SpreadsOverTheAddressesOfAFamily) {
  Book b({{ip("1.1.1.1"), ip("1.1.1.2"), ip("1.1.1.3"), ip("::7")}});
  EXPECT_EQ(b.picks(30), (Count{{1, 10}, {2, 10}, {3, 10}}));
  EXPECT_EQ(b.book.pick("h", ip("::1")).address, ip("::7"));
  EXPECT_EQ(b.book.pick("unknown", ip("9.9.9.9")).address, ip("9.9.9.9"));
}

TEST(AddressBook, AFailingAddressIsAvoidedForAWhile) {
  Book b({{ip("1.1.1.1"), ip("1.1.1.2")}});
  b.book.failed({0, ip("1.1.1.2")});
  EXPECT_EQ(b.picks(10), (Count{{1, 10}}));
  b.clock.advance(AddressBook::kAvoid);
  EXPECT_EQ(b.picks(10), (Count{{2, 10}})) << "it has the fewest connections";
  b.book.failed({0, ip("1.1.1.1")});
  b.book.failed({0, ip("1.1.1.2")});
  EXPECT_EQ(b.picks(10).size(), 2U) << "nothing better is there";
}

TEST(AddressBook, AddressesComeAndGoWithTheNames) {
  Book b({{ip("1.1.1.1")}, {ip("1.1.1.2")}});
  EXPECT_EQ(b.picks(4), (Count{{1, 4}}));
  b.look_up();
  EXPECT_EQ(b.picks(4), (Count{{2, 4}})) << "one lookup that leaves it out is not its end, but the new one has fewer";
  for (int i = 1; i < AddressBook::kKeptLookups; ++i) b.look_up();
  EXPECT_EQ(b.picks(8), (Count{{2, 8}}));
}

TEST(AddressBook, ALookupThatNeverEndsHoldsNobodyUp) {
  FakeClock clock;
  std::atomic<bool> is_asked{false};
  const auto begin = std::chrono::steady_clock::now();
  {
    AddressBook book(
        [&](const std::string&, const std::stop_token& stop) {
          is_asked = true;
          while (!stop.stop_requested()) std::this_thread::yield();
          return std::vector<IpAddress>();
        },
        clock);
    EXPECT_EQ(book.pick("h", ip("1.1.1.1")).address, ip("1.1.1.1"));
    while (!is_asked) std::this_thread::yield();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
}

// A store with three addresses, one of which is dead.
TEST(AddressBook, ConnectionsGoToEveryAddressAndADeadOneFailsNothing) {
  const auto handler = [](const ServerRequest& r) { return serve(r); };
  LoopbackServer first(handler);
  LoopbackServer second(handler, {.address = "127.0.0.2", .port = first.port()});
  auto settings = settings_for(first);
  settings.storage.endpoint = "http://localhost:" + std::to_string(first.port());
  settings.concurrency = 24;
  std::atomic<int> n_lookups{0};
  settings.storage.resolver = [&](const std::string& host) {
    EXPECT_EQ(host, "localhost");
    ++n_lookups;
    return std::vector<std::string>{"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  };
  const auto fetcher = make(settings);
  ASSERT_TRUE(fetcher->fetch(request_for("s3://b/first")).ok());
  while (n_lookups == 0) std::this_thread::yield();
  ASSERT_TRUE(fetcher->fetch(request_for("s3://b/second")).ok());  // the answer is in by now
  first.hold(true);
  second.hold(true);
  Answers answers(200);
  submit_all(*fetcher, 200, answers);
  while (first.n_requests() + second.n_requests() < 2 + 24) std::this_thread::yield();
  first.hold(false);
  second.hold(false);
  answers.wait();
  EXPECT_EQ(answers.n_ok(), 200);
  EXPECT_GE(first.n_connections_made(), 8);
  EXPECT_GE(second.n_connections_made(), 8);
}

}  // namespace
}  // namespace stoker
