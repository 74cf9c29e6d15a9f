#include "bench/process/local_socket.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "core/error.h"

namespace attnbench {

TEST_CASE("who connects by a name talks with who listens at it") {
  const std::string name = "attnbench-test-" + std::to_string(::getpid());
  const Descriptor listener = listen_at(name);
  const Descriptor caller = connect_to(name);
  const Descriptor accepted(::accept(listener.get(), nullptr, nullptr));
  REQUIRE(send_message(caller.get(), 'x', "a text"));
  MessageReader reader;
  Message message;
  REQUIRE(reader.read(accepted.get(), message) == MessageReader::Read::kMessage);
  CHECK(message.text == "a text");
  CHECK_THROWS_AS(listen_at(name), Error);
}

TEST_CASE("a name that nobody listens at, or that is too long, is an error") {
  CHECK_THROWS_AS(connect_to("attnbench-test-nobody-" + std::to_string(::getpid())), Error);
  CHECK_THROWS_AS(listen_at(std::string(200, 'x')), Error);
  CHECK_THROWS_AS(connect_to(std::string(200, 'x')), Error);
}

}  // namespace attnbench
