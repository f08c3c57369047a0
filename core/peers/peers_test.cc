#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "mem/block.h"
#include "peers/follower.h"
#include "peers/leader.h"
#include "peers/messages.h"
#include "peers/place.h"
#include "peers/socket.h"

namespace stoker::peers {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kTokens = 512;

std::string differing(const std::string& a, const std::string& b) { return a == b ? "" : a.substr(0, a.find('=')); }

/// Places of one run, which no other test shares.
std::vector<Place> places(int count, const std::string& settings = "seed=1") {
  static std::atomic<int> n_made = 0;
  const std::string job = "peers-test-" + std::to_string(getpid()) + "-" + std::to_string(n_made++);
  std::vector<Place> out;
  for (int rank = 0; rank < count; ++rank) {
    out.push_back(Place::make(job, 0, rank, count, settings));
    out.back().differing = differing;
  }
  return out;
}

std::unique_ptr<Leader> lead(const Place& place) {
  auto leader = Leader::listen(
      place, Nanos(0), [](std::string_view) {}, {}, Clock::real());
  EXPECT_TRUE(leader.ok()) << leader.status().to_string();
  return std::move(leader).value();
}

/// A pack whose every array says which one it is.
Result<Delivery> pack(BlockPool& pool, std::int64_t number, std::stop_token stop = {}) {
  const PackShape shape{.tokens = kTokens, .samples = 1};
  const PackLayout at(shape);
  STOKER_TRY(const std::shared_ptr<Block> block,
             pool.acquire(at.n_bytes, {.pack = static_cast<std::uint64_t>(number)}, stop));
  auto* ids = reinterpret_cast<std::int64_t*>(block->data() + at.input_ids);
  std::fill(ids, ids + kTokens, number);
  Delivery made{.n_samples = 1, .is_last_of_step = true};
  made.batch.block = block;
  made.batch.shape = made.batch.planned = shape;
  made.batch.counts.step = number;
  made.state_after = {.step = static_cast<std::uint64_t>(number) + 1, .window_digest = "digest"};
  return made;
}

/// What all of a pack's tokens say, or -1 if they differ.
std::int64_t number_of(const Batch& batch) {
  const auto* ids = batch.array<std::int64_t>(batch.layout().input_ids);
  return std::all_of(ids, ids + kTokens, [ids](std::int64_t id) { return id == ids[0]; }) ? ids[0] : -1;
}

Result<std::optional<Delivery>> take(Follower& follower) {
  for (;;) {
    auto taken = follower.take_within(seconds(10));
    if (!taken.ok() || *taken || follower.is_at_end()) return taken;
  }
}

/// Waits until the leader has opened, then starts.
void start(Follower& follower, const PlanState& state = {}) {
  for (;;) {
    const auto welcome = follower.welcome_within(seconds(10));
    ASSERT_TRUE(welcome.ok()) << welcome.status().to_string();
    if (*welcome) return follower.start(state);
  }
}

std::shared_ptr<BlockPool> pool_of(const std::shared_ptr<MemoryBudget>& budget) {
  return std::make_shared<BlockPool>(budget, BlockSharing::kShared);
}

std::size_t block_bytes() { return BlockPool::rounded(PackLayout(PackShape{.tokens = kTokens, .samples = 1}).n_bytes); }

// --- messages

std::vector<Message> all_messages() {
  Pack pack{.sequence = 3, .block_id = 9, .block_bytes = 1 << 20};
  pack.delivery.batch.shape = {.tokens = 7, .samples = 2, .images = 1, .patches = 4, .has_loss_weights = true};
  pack.delivery.batch.planned = {.tokens = 8, .samples = 3, .images = 1, .patches = 4, .has_loss_weights = true};
  pack.delivery.batch.max_seqlen = 5;
  pack.delivery.batch.counts = {.tokens = 7, .target_tokens = 3, .is_step_target_upper_bound = true, .cost = 1 << 30};
  pack.delivery.state_after = {4, 2, 1, "abc"};
  pack.delivery.bad = {{Reason::kImgTruncated, 2}, {Reason::kMediaNotFound, 1}};
  return {Hello{2, "a=1 b=2"},
          Start{{1, 2, 3, "d"}},
          Want{-1},
          Taken{5},
          Released{6},
          Leave{7},
          Refused{"no"},
          Progress{"opening"},
          Welcome{"f=1", {.image_mean = {0.5, 0.25, 0.125}, .image_rescale = 1.0 / 255, .patch = 16}},
          Started{{1, 2, 3, "d"}},
          pack,
          Forget{8},
          End{Status(Reason::kTooManyBad, "12 of 100")}};
}

TEST(Messages, ComeBackAsTheyWere) {
  const auto messages = all_messages();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (const Message& message : messages) {
    const std::string bytes = encode(message);
    const auto back = decode(bytes);
    ASSERT_TRUE(back.ok()) << message.index();
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(encode(*back), bytes) << message.index();
  }
  const auto end = decode(encode(End{Status(Reason::kTooManyBad, "12 of 100")}));
  EXPECT_EQ(std::get<End>(*end).status.to_string(), "TOO_MANY_BAD: 12 of 100");
}

TEST(Messages, AreForeignBytes) {
  std::mt19937 random(7);
  for (const Message& message : all_messages()) {
    const std::string bytes = encode(message);
    ASSERT_LT(bytes.size(), kMaxMessageBytes);
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      EXPECT_EQ(decode(std::string_view(bytes).substr(0, n)).status().reason(), Reason::kPeerMismatch);
    }
    EXPECT_FALSE(decode(bytes + '\0').ok());
    for (int i = 0; i < 400; ++i) {  // whatever changes: refused, or arrays that lie within their block
      std::string changed = bytes;
      changed[random() % bytes.size()] = static_cast<char>(random());
      const auto back = decode(changed);
      const auto* pack = back.ok() ? std::get_if<Pack>(&*back) : nullptr;
      if (pack == nullptr) continue;
      EXPECT_LE(pack->delivery.batch.layout().n_bytes, pack->block_bytes);
    }
  }
  EXPECT_LT(encode(Progress{std::string(1 << 20, 'x')}).size(), kMaxMessageBytes);
}

// --- deliveries

TEST(Peers, GetTheSameWhileBlocksAreUsedAgain) {
  constexpr int kPacks = 300;
  const auto at = places(4);
  auto budget = std::make_shared<MemoryBudget>(4 * block_bytes());
  auto pool = pool_of(budget);
  std::vector<std::jthread> followers;
  std::atomic<int> n_right = 0;
  for (int rank = 1; rank < 4; ++rank) {
    followers.emplace_back([&, rank] {
      Follower follower(at[static_cast<std::size_t>(rank)], seconds(60), Clock::real());
      start(follower);
      EXPECT_EQ((**follower.welcome_within(seconds(0))).fingerprint, "f=1");
      std::deque<Delivery> held;
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int n = 0; n < kPacks; ++n) {
        auto taken = take(follower);
        ASSERT_TRUE(taken.ok()) << taken.status().to_string();
        EXPECT_EQ((**taken).state_after.step, static_cast<std::uint64_t>(n) + 1);
        held.push_back(std::move(**taken));
        const bool is_right = number_of(held.back().batch) == n && number_of(held.front().batch) >= 0;
        n_right += is_right ? 1 : 0;
        while (held.size() > random() % 3) held.pop_front();
      }
      const auto end = take(follower);
      EXPECT_TRUE(end.ok() && !*end && follower.is_at_end());
    });
  }
  {
    const auto leader = lead(at[0]);
    pool->on_unmapped([&](std::uint64_t id) { leader->forget(id); });
    leader->welcome({"f=1", {}});
    ASSERT_TRUE(leader->all_joined_within(seconds(60)));
    leader->start({}, [](std::int64_t) {});
    for (int n = 0; n < kPacks; ++n) leader->publish(*pack(*pool, n));
    leader->end({});
    followers.clear();
    EXPECT_EQ(leader->stats().n_joined, 3);
  }
  EXPECT_EQ(n_right, 3 * kPacks);
  EXPECT_LT(pool->n_mapped(), kPacks / 4);  // four, and one more whenever a free one was given up early
  EXPECT_EQ(budget->in_use_bytes(), 0U);
}

TEST(Peers, ASlowOneMakesTheEnginePauseAndNothingGrows) {
  const auto at = places(2);
  auto budget = std::make_shared<MemoryBudget>(3 * block_bytes());
  auto pool = pool_of(budget);
  const auto leader = lead(at[0]);
  leader->welcome({});
  Follower follower(at[1], seconds(60), Clock::real());
  ASSERT_TRUE(leader->all_joined_within(seconds(60)));
  start(follower);
  leader->start({}, [](std::int64_t) {});
  std::jthread engine([&] {
    for (int n = 0; n < 8; ++n) leader->publish(*pack(*pool, n));
    leader->end({});
  });
  while (leader->stats().n_unread < 3 || budget->n_waiting() == 0) std::this_thread::yield();
  for (int n = 0; n < 8; ++n) EXPECT_EQ(number_of((**take(follower)).batch), n);
  EXPECT_LE(budget->peak_bytes(), 3 * block_bytes());
}

TEST(Peers, ArraysOutliveTheirFollowerAndItsLeader) {
  const auto at = places(2);
  auto budget = std::make_shared<MemoryBudget>(2 * block_bytes());
  auto pool = pool_of(budget);
  std::optional<Delivery> held;
  {
    const auto leader = lead(at[0]);
    leader->welcome({});
    auto follower = std::make_unique<Follower>(at[1], seconds(60), Clock::real());
    ASSERT_TRUE(leader->all_joined_within(seconds(60)));
    start(*follower);
    leader->start({}, [](std::int64_t) {});
    leader->publish(*pack(*pool, 41));
    held = std::move(**take(*follower));
    leader->publish(*pack(*pool, 42));  // which it does not take
    follower.reset();
    while (leader->stats().n_left == 0) std::this_thread::yield();
    for (int n = 100; n < 120; ++n) {  // one block is left, and is used over and over
      leader->publish(*pack(*pool, n));
      EXPECT_EQ(number_of(held->batch), 41);
    }
    EXPECT_EQ(budget->in_use_bytes(), block_bytes());
    std::jthread elsewhere([&] { EXPECT_EQ(number_of(held->batch), 41); });
  }
  pool.reset();
  EXPECT_EQ(budget->in_use_bytes(), 0U);  // the leader is gone, its memory is not
  EXPECT_EQ(number_of(held->batch), 41);
}

/// A peer without a Follower, which does as it likes.
OwnedFd joined(const Place& place, Leader& leader) {
  auto socket = connect_to(place.name);
  EXPECT_TRUE(socket.ok() && *socket);
  EXPECT_EQ(send_message(**socket, encode(Hello{place.rank, place.settings})), Sent::kYes);
  EXPECT_TRUE(leader.all_joined_within(seconds(60)));
  return std::move(**socket);
}

TEST(Peers, OneThatEndsHoldsNothing) {
  for (const bool is_rude : {false, true}) {
    const auto at = places(2);
    auto budget = std::make_shared<MemoryBudget>(2 * block_bytes());
    auto pool = pool_of(budget);
    const auto leader = lead(at[0]);
    leader->welcome({});
    leader->start({}, [](std::int64_t) {});
    OwnedFd socket = joined(at[1], *leader);
    leader->publish(*pack(*pool, 0));
    leader->publish(*pack(*pool, 1));
    if (is_rude) {
      EXPECT_EQ(send_message(socket, encode(Released{77})), Sent::kYes);  // of what it never got
    } else {
      socket = OwnedFd();
      const OwnedFd closed = std::move(socket);
    }
    for (int n = 2; n < 20; ++n) leader->publish(*pack(*pool, n));
    EXPECT_EQ(leader->stats().n_left, 1);
  }
}

TEST(Peers, AFollowerLearnsWhyItsRunEnded) {
  for (const int how : {0, 1, 2}) {
    const auto at = places(2);
    auto pool = pool_of(std::make_shared<MemoryBudget>(2 * block_bytes()));
    auto leader = lead(at[0]);
    leader->welcome({});
    Follower follower(at[1], seconds(60), Clock::real());
    ASSERT_TRUE(leader->all_joined_within(seconds(60)));
    start(follower);
    leader->start({}, [](std::int64_t) {});
    leader->publish(*pack(*pool, 0));
    if (how == 1) leader->end(Status(Reason::kTooManyBad, "12 of 100"));
    if (how == 2) leader->end({});
    leader.reset();
    EXPECT_EQ(number_of((**take(follower)).batch), 0);  // what was ready comes first
    const auto end = take(follower);
    const Reason expected[] = {Reason::kPeerLost, Reason::kTooManyBad, Reason::kNone};
    EXPECT_EQ(end.status().reason(), expected[how]) << end.status().to_string();
    EXPECT_EQ(follower.is_at_end(), how == 2);
  }
}

TEST(Peers, AWantedStepReachesTheEngineAlsoBeforeItStarts) {
  const auto at = places(2);
  const auto leader = lead(at[0]);
  leader->welcome({});
  const OwnedFd socket = joined(at[1], *leader);
  std::atomic<std::int64_t> wanted = -1;
  EXPECT_EQ(send_message(socket, encode(Want{3})), Sent::kYes);
  leader->start({}, [&](std::int64_t step) { wanted = step; });
  while (wanted != 3) std::this_thread::yield();
  EXPECT_EQ(send_message(socket, encode(Want{4})), Sent::kYes);
  while (wanted != 4) std::this_thread::yield();
}

// --- who is let in

Status refused(const Place& place) {
  Follower follower(place, Nanos(0), Clock::real());
  for (;;) {
    const auto welcome = follower.welcome_within(seconds(10));
    if (!welcome.ok()) return welcome.status();
  }
}

TEST(Peers, AreLetInByTheirPlace) {
  const auto at = places(3);
  const auto leader = lead(at[0]);
  Follower first(at[1], seconds(60), Clock::real());
  while (leader->stats().n_joined == 0) std::this_thread::yield();
  EXPECT_EQ(leader->stats().missing, "2");

  EXPECT_NE(refused(at[1]).message().find("peer 1 is here already"), std::string::npos) << refused(at[1]).message();
  Place beyond = at[2];
  beyond.rank = 3;
  EXPECT_EQ(refused(beyond).reason(), Reason::kPeerMismatch);
  Place other = at[2];
  other.settings = "seed=2";
  other.name += "x";  // other settings, other name: it is told at the desk
  EXPECT_NE(refused(other).message().find("`seed` is not the same on peer 2"), std::string::npos);
  Place lost = at[2];
  lost.name += "x";
  lost.desk += "x";
  EXPECT_EQ(refused(lost).reason(), Reason::kPeerLost);

  const auto second = Leader::listen(
      at[0], Nanos(0), [](std::string_view) {}, {}, Clock::real());
  EXPECT_EQ(second.status().reason(), Reason::kPeerMismatch);
  EXPECT_NE(second.status().message().find("process " + std::to_string(getpid())), std::string::npos);

  const auto noise = connect_to(at[0].name);
  EXPECT_EQ(send_message(**noise, "noise"), Sent::kYes);
  for (;;) {
    const auto answer = receive_message(**noise);
    if (answer.what == Received::What::kNothing) continue;
    EXPECT_TRUE(std::holds_alternative<Refused>(*decode(answer.bytes)));
    break;
  }
}

TEST(Peers, ThatStartElsewhereStop) {
  const auto at = places(2);
  const auto leader = lead(at[0]);
  leader->welcome({});
  Follower follower(at[1], seconds(60), Clock::real());
  ASSERT_TRUE(leader->all_joined_within(seconds(60)));
  leader->start(PlanState{4, 0, 0, ""}, [](std::int64_t) {});
  start(follower, PlanState{5, 0, 0, ""});
  EXPECT_EQ(take(follower).status().reason(), Reason::kState);
  while (leader->failure().ok()) std::this_thread::yield();
  EXPECT_NE(leader->failure().message().find("starts at step 5"), std::string::npos);
}

TEST(Peers, WaitsEnd) {
  const auto at = places(2);
  Follower follower(at[1], seconds(3600), Clock::real());
  std::jthread other([&] { follower.close(); });
  EXPECT_FALSE(follower.welcome_within(seconds(3600)).ok());
  other.join();
  const auto leader = lead(at[0]);
  std::stop_source stop;
  std::jthread second([&] {
    const auto refused = Leader::listen(
        at[0], seconds(3600), [](std::string_view) {}, stop.get_token(), Clock::real());
    EXPECT_EQ(refused.status().code(), Code::kCancelled);
  });
  stop.request_stop();
}

TEST(Peers, AFalseLeaderIsFoundOut) {
  const PackShape shape{.tokens = kTokens, .samples = 1};
  const std::size_t n_bytes = PackLayout(shape).n_bytes;
  Pack message{.block_bytes = n_bytes};
  message.delivery.batch.shape = message.delivery.batch.planned = shape;
  for (const int how : {0, 1, 2, 3}) {
    const auto at = places(2);
    auto listener = listen_at(at[0].name);
    ASSERT_TRUE(listener.ok() && *listener);
    Follower follower(at[1], seconds(60), Clock::real());
    std::optional<OwnedFd> socket;
    while (!socket) socket = accept_from(**listener);
    EXPECT_EQ(send_message(*socket, encode(Welcome{})), Sent::kYes);
    EXPECT_EQ(send_message(*socket, encode(Started{})), Sent::kYes);
    start(follower);
    const auto good = SharedMemory::make(n_bytes);
    const auto small = SharedMemory::make(4096);
    const OwnedFd unsealed(memfd_create("test", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(unsealed.get(), static_cast<off_t>(n_bytes)), 0);
    const int fds[] = {-1, small->fd(), unsealed.get(), good->fd()};
    if (how == 3) message.sequence = 1;  // out of turn
    EXPECT_EQ(send_message(*socket, encode(message), fds[how]), Sent::kYes);
    EXPECT_EQ(take(follower).status().reason(), Reason::kPeerMismatch) << how;
  }
}

TEST(SharedMemory, IsReadOnlyForOthersAndLeavesNothing) {
  const auto count = [] {
    const std::filesystem::directory_iterator fds("/proc/self/fd");
    return std::distance(begin(fds), end(fds));
  };
  const auto before = count();
  {
    const auto made = SharedMemory::make(10000);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    made->data()[9999] = std::byte{7};
    const auto seen = SharedMemory::attach(OwnedFd(dup(made->fd())), 10000);
    ASSERT_TRUE(seen.ok()) << seen.status().to_string();
    EXPECT_EQ(seen->data()[9999], std::byte{7});
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd(), 0), MAP_FAILED);
    EXPECT_NE(ftruncate(made->fd(), 0), 0);
  }
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace stoker::peers
