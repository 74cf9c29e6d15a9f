#include "bench/process/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace attnbench {
namespace {

/// A socket, and the address of a name for bind() and connect(): a zero, then the name.
struct LocalSocket {
  Descriptor socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_un address{};
  socklen_t size = 0;

  explicit LocalSocket(const std::string& name) {
    if (name.size() >= sizeof address.sun_path) {
      fail(ErrorKind::kInternal, "the name of a socket has {} bytes, at most {} fit", name.size(),
           sizeof address.sun_path - 1);
    }
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* where() const { return reinterpret_cast<const sockaddr*>(&address); }
};

}  // namespace

Descriptor listen_at(const std::string& name) {
  constexpr int kWaiting = 8;
  LocalSocket local(name);
  if (::bind(local.socket.get(), local.where(), local.size) != 0 ||
      ::listen(local.socket.get(), kWaiting) != 0) {
    fail(ErrorKind::kInternal, "no socket to listen at '{}': {}", name, std::strerror(errno));
  }
  return std::move(local.socket);
}

Descriptor connect_to(const std::string& name) {
  LocalSocket local(name);
  if (::connect(local.socket.get(), local.where(), local.size) != 0) {
    fail(ErrorKind::kInternal, "nobody answers at socket '{}': {}", name, std::strerror(errno));
  }
  return std::move(local.socket);
}

}  // namespace attnbench
