#include "core/wait_status.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstring>

namespace attnbench {

std::string describe_wait_status(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("exit status {}", WEXITSTATUS(status));
}

}  // namespace attnbench
