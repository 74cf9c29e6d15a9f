// Messages between two processes: frames on a socket, each of a kind, a text of any bytes and,
// where the sender adds one, a file descriptor. The other end may be hostile: nothing that it sends
// can do more than end the conversation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace attnbench {

/// A file descriptor that is closed with it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  /// -1 = none.
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// One message: a kind and a text of any bytes.
struct Message {
  char kind = 0;
  std::string text;
  Descriptor file = Descriptor();
};

/// The two ends of a conversation. Errors: E-INTERNAL when the system has none.
struct SocketPair {
  SocketPair();
  Descriptor ours;
  Descriptor theirs;
};

/// Sends all of it. `file` -1 = none. False: the other end is gone, or reads nothing.
bool send_message(int socket, char kind, const std::string& text, int file = -1);

/// Puts the frames of a socket together again.
class MessageReader {
 public:
  enum class Read { kMessage, kNothingYet, kEnded };
  /// Reads once what is there, at most 64 KiB, and waits for it when there is nothing. A frame that
  /// claims more than any message has counts as the end.
  Read read(int socket, Message& message);
  /// A message that is complete already.
  bool take(Message& message);

 private:
  std::string received_;
  std::deque<Descriptor> files_;
  bool is_broken_ = false;
};

}  // namespace attnbench
