#include "inputs/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/error.h"
#include "inputs/safetensors_header.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  /// 0 or -1 as close(2), so that a late write error is not lost.
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

/// Copies bytes [offset, offset + out.size()) of the file into out.
using ReadBytes = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

SafetensorsFile read_from(const ReadBytes& read, std::uint64_t file_bytes,
                          const std::string& name) {
  std::byte prefix[kSafetensorsPrefixBytes] = {};
  if (file_bytes >= kSafetensorsPrefixBytes) read(0, prefix);
  const std::uint64_t header_bytes = checked_header_length(prefix, file_bytes, name);
  std::string text(header_bytes, '\0');
  read(kSafetensorsPrefixBytes, std::as_writable_bytes(std::span(text)));
  const std::uint64_t data_start = kSafetensorsPrefixBytes + header_bytes;
  SafetensorsHeader header = parse_safetensors_header(text, file_bytes - data_start, name);
  SafetensorsFile file;
  file.metadata = std::move(header.metadata);
  for (SafetensorsEntry& entry : header.entries) {
    const auto dtype = dtype_from_safetensors_name(entry.dtype);
    if (!dtype) continue;
    Tensor tensor(*dtype, std::move(entry.shape));
    read(data_start + entry.begin, {tensor.bytes(), tensor.size_bytes()});
    file.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  return file;
}

void read_fully(int fd, std::uint64_t offset, std::span<std::byte> out, const std::string& name) {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::kIo, "cannot read '{}': {}", name, std::strerror(errno));
    if (count == 0) fail(ErrorKind::kIo, "'{}' became shorter while it was read", name);
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

void write_fully(int fd, std::span<const std::byte> bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::kIo, "cannot write '{}': {}", name, std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

using NamedTensors = std::vector<std::pair<std::string, const Tensor*>>;

/// Indices of the tensors in the order of their data: larger elements first, so that every tensor
/// is aligned to its element size.
std::vector<std::size_t> data_order(const NamedTensors& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return dtype_size(tensors[a].second->dtype()) > dtype_size(tensors[b].second->dtype());
  });
  return order;
}

/// Length field and JSON, padded with spaces to a multiple of 8 bytes.
std::string encode_header(const NamedTensors& tensors, const std::vector<std::size_t>& order,
                          const std::map<std::string, std::string>& metadata) {
  using nlohmann::ordered_json;
  ordered_json header = ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const std::size_t i : order) {
    const auto& [name, tensor] = tensors[i];
    if (name == "__metadata__" || header.contains(name)) {
      fail(ErrorKind::kInternal, "write_safetensors: tensor name '{}' given twice or reserved",
           name);
    }
    const std::size_t end = offset + tensor->size_bytes();
    header[name] = {{"dtype", safetensors_name(tensor->dtype())},
                    {"shape", tensor->shape()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string encoded;
  for (int i = 0; i < 8; ++i) encoded += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return encoded + text;
}

/// A name beside `path` that no other writer of this or another process uses.
fs::path temporary_name(const fs::path& path) {
  static std::atomic<int> counter{0};
  fs::path name = path;
  name += fmt::format(".tmp-{}-{}", ::getpid(), counter++);
  return name;
}

}  // namespace

const Tensor* SafetensorsFile::find(const std::string& name) const {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return &tensor;
  }
  return nullptr;
}

SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  return read_from(read, bytes.size(), name);
}

SafetensorsFile read_safetensors(const fs::path& path) {
  const std::string name = path.string();
  // Why O_NONBLOCK: opening a named pipe must not wait for its writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail(ErrorKind::kIo, "cannot open '{}': {}", name, std::strerror(errno));
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) {
    fail(ErrorKind::kIo, "cannot read '{}': {}", name, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) fail(ErrorKind::kIo, "'{}' is not a regular file", name);
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    read_fully(file.get(), offset, out, name);
  };
  return read_from(read, static_cast<std::uint64_t>(info.st_size), name);
}

void write_safetensors(const fs::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<std::size_t> order = data_order(tensors);
  const std::string header = encode_header(tensors, order, metadata);
  const std::string name = path.string();
  const fs::path temporary = temporary_name(path);
  FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) fail(ErrorKind::kIo, "cannot write '{}': {}", name, std::strerror(errno));
  try {
    write_fully(file.get(), std::as_bytes(std::span(header)), name);
    for (const std::size_t i : order) {
      const Tensor& tensor = *tensors[i].second;
      write_fully(file.get(), {tensor.bytes(), tensor.size_bytes()}, name);
    }
    if (::fsync(file.get()) != 0 || file.close() != 0 ||
        ::rename(temporary.c_str(), path.c_str()) != 0) {
      fail(ErrorKind::kIo, "cannot write '{}': {}", name, std::strerror(errno));
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace attnbench
