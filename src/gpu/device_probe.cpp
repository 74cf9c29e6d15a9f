#include "gpu/device_probe.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <sstream>

namespace attnbench {
namespace {

constexpr int kLimitMs = 60'000;  // a first start of the driver takes seconds

void write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<std::size_t>(count);
  }
}

/// Everything up to the end of the pipe; false when that takes too long.
bool read_all(int fd, std::string& text) {
  std::array<char, 4096> part;
  for (;;) {
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, kLimitMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t count = read(fd, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
}

[[noreturn]] void list_and_exit(int fd) {
  DeviceList list;
  try {
    list = list_devices();
  } catch (const std::exception& error) {
    list.missing = std::string("no CUDA device: ") + error.what();
  }
  write_all(fd, to_text(list));
  _exit(0);
}

}  // namespace

std::string to_text(const DeviceList& list) {
  if (list.devices.empty()) return "missing\t" + list.missing + "\n";
  std::string text;
  for (const DeviceInfo& d : list.devices) {
    text += fmt::format("device\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", d.index, d.name, d.sm,
                        d.num_sms, d.memory_bytes, d.l2_bytes, d.max_shared_bytes, d.pci_bus_id,
                        d.driver, d.runtime);
  }
  return text;
}

DeviceList device_list_from_text(const std::string& text) {
  DeviceList list;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    const auto next = [&fields] {
      std::string field;
      std::getline(fields, field, '\t');
      return field;
    };
    const std::string kind = next();
    if (kind == "missing") list.missing = next();
    if (kind != "device") continue;
    DeviceInfo d;
    d.index = std::stoi(next());
    d.name = next();
    d.sm = std::stoi(next());
    d.num_sms = std::stoi(next());
    d.memory_bytes = std::stoull(next());
    d.l2_bytes = std::stoull(next());
    d.max_shared_bytes = std::stoi(next());
    d.pci_bus_id = next();
    d.driver = next();
    d.runtime = next();
    list.devices.push_back(std::move(d));
  }
  if (list.devices.empty() && list.missing.empty()) {
    list.missing = "no CUDA device: the NVIDIA driver ended the process that asked it";
  }
  return list;
}

DeviceList probe_devices() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {{}, "no CUDA device: there is no pipe to ask for one"};
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    return {{}, "no CUDA device: there is no process to ask for one"};
  }
  if (child == 0) list_and_exit(ends[1]);
  close(ends[1]);
  std::string text;
  const bool answered = read_all(ends[0], text);
  close(ends[0]);
  if (!answered) ::kill(child, SIGKILL);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!answered) return {{}, "no CUDA device: the NVIDIA driver does not answer"};
  return device_list_from_text(text);
}

}  // namespace attnbench
