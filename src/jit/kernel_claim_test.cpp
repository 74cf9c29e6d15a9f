#include "jit/kernel_claim.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace attnbench {
namespace {

namespace fs = std::filesystem;
using State = KernelClaim::State;

/// Long enough to fail as a test that hangs.
constexpr std::chrono::hours kForever{1};

struct Scratch {
  fs::path root = fs::temp_directory_path() / ("attnbench-claims-" + std::to_string(getpid()));
  Scratch() { fs::remove_all(root); }
  ~Scratch() { fs::remove_all(root); }
  bool is_empty() const { return !fs::exists(root) || fs::is_empty(root); }
};

/// Another process that has the claim: it lives until it is killed or told to let go.
class Holder {
 public:
  explicit Holder(const fs::path& root) {
    int to_child[2], to_us[2];
    REQUIRE(pipe(to_child) == 0);
    REQUIRE(pipe(to_us) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(to_child[1]);
      {
        const KernelClaim claim(root, "k");
        char byte = claim.state() == State::kHeld ? 'y' : 'n';
        if (write(to_us[1], &byte, 1) != 1 || read(to_child[0], &byte, 1) < 0) _exit(1);
      }
      _exit(0);
    }
    close(to_child[0]);
    close(to_us[1]);
    let_go_ = to_child[1];
    char byte = 'n';
    REQUIRE(read(to_us[0], &byte, 1) == 1);
    close(to_us[0]);
    REQUIRE(byte == 'y');
  }
  ~Holder() {
    let_go();
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  void let_go() {
    if (let_go_ >= 0) close(let_go_);
    let_go_ = -1;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  pid_t pid_ = -1;
  int let_go_ = -1;
};

}  // namespace

TEST_CASE("a claim is one thread's at a time, and leaves nothing behind") {
  const Scratch scratch;
  {
    const KernelClaim first(scratch.root, "k");
    CHECK(first.state() == State::kHeld);
    CHECK(KernelClaim(scratch.root, "k").state() == State::kBusy);
    CHECK(KernelClaim(scratch.root, "other").state() == State::kHeld);
  }
  CHECK(scratch.is_empty());
  CHECK(KernelClaim(scratch.root, "k").state() == State::kHeld);
  CHECK(scratch.is_empty());
}

TEST_CASE("who waits gets the claim when the other lets go") {
  const Scratch scratch;
  Holder holder(scratch.root);
  KernelClaim claim(scratch.root, "k");
  REQUIRE(claim.state() == State::kBusy);
  claim.wait(std::chrono::milliseconds(1));
  REQUIRE(claim.state() == State::kBusy);
  holder.let_go();
  claim.wait(kForever);
  CHECK(claim.state() == State::kHeld);
}

TEST_CASE("the claim of a process that was killed is free") {
  const Scratch scratch;
  Holder holder(scratch.root);
  KernelClaim waiting(scratch.root, "k");
  REQUIRE(waiting.state() == State::kBusy);
  holder.kill();
  CHECK_FALSE(scratch.is_empty());  // its file is still there
  waiting.wait(kForever);
  CHECK(waiting.state() == State::kHeld);
}

TEST_CASE("nobody waits for a process that has been stopped") {
  const Scratch scratch;
  const Holder holder(scratch.root);
  holder.stop();
  KernelClaim claim(scratch.root, "k");
  claim.wait(kForever);
  CHECK(claim.state() == State::kBusy);
}

TEST_CASE("there are no claims in a folder that cannot be made") {
  const Scratch scratch;
  fs::create_directories(scratch.root);
  std::ofstream(scratch.root / "file") << "x";
  KernelClaim claim(scratch.root / "file" / "cache", "k");
  CHECK(claim.state() == State::kNone);
  claim.wait(kForever);
  CHECK(claim.state() == State::kNone);
}
}  // namespace attnbench
