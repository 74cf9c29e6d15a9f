// A frame: one byte of kind, one that says whether a file comes with it, eight of length, the text.
// The file travels with the first bytes of its frame, so it is there when they are read.
#include "bench/process/frames.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace attnbench {
namespace {

constexpr std::size_t kHeaderSize = 2 + sizeof(std::uint64_t);
constexpr std::uint64_t kLongestText = std::uint64_t{1} << 28;
/// More files than frames may wait for is no conversation of ours.
constexpr std::size_t kMostFiles = 8;

ssize_t send_some(int socket, const char* bytes, std::size_t count, int file) {
  iovec data{const_cast<char*>(bytes), count};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (file >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof file);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

void take_files(msghdr& message, std::deque<Descriptor>& files) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(header) + i * sizeof(int), sizeof file);
      files.emplace_back(file);
    }
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

SocketPair::SocketPair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    fail(ErrorKind::kInternal, "no socket: {}", std::strerror(errno));
  }
  ours = Descriptor(ends[0]);
  theirs = Descriptor(ends[1]);
}

bool send_message(int socket, char kind, const std::string& text, int file) {
  const std::uint64_t size = text.size();
  std::string frame(kHeaderSize, kind);
  frame[1] = file >= 0 ? 1 : 0;
  std::memcpy(frame.data() + 2, &size, sizeof size);
  frame += text;
  const char* bytes = frame.data();
  for (std::size_t left = frame.size(); left > 0;) {
    const ssize_t sent = send_some(socket, bytes, left, file);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    file = -1;  // once
    bytes += sent;
    left -= static_cast<std::size_t>(sent);
  }
  return true;
}

MessageReader::Read MessageReader::read(int socket, Message& message) {
  if (take(message)) return Read::kMessage;
  if (is_broken_) return Read::kEnded;
  std::array<char, 65536> bytes;
  iovec data{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostFiles)> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (count < 0 && errno == EINTR) return Read::kNothingYet;
  if (count <= 0) return Read::kEnded;
  take_files(header, files_);
  if (files_.size() > kMostFiles) is_broken_ = true;
  received_.append(bytes.data(), static_cast<std::size_t>(count));
  return take(message) ? Read::kMessage : Read::kNothingYet;
}

bool MessageReader::take(Message& message) {
  if (is_broken_ || received_.size() < kHeaderSize) return false;
  std::uint64_t size = 0;
  std::memcpy(&size, received_.data() + 2, sizeof size);
  const bool has_file = received_[1] != 0;
  if (size > kLongestText || (has_file && files_.empty())) is_broken_ = true;
  if (is_broken_ || received_.size() - kHeaderSize < size) return false;
  message.kind = received_[0];
  message.text = received_.substr(kHeaderSize, size);
  message.file = Descriptor();
  if (has_file) {
    message.file = std::move(files_.front());
    files_.pop_front();
  }
  received_.erase(0, kHeaderSize + size);
  return true;
}

}  // namespace attnbench
