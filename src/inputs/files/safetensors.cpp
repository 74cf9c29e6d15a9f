// Reading and writing of safetensors files. The header is checked as a whole before a byte of data
// is read, so a file cut short or made up is refused at once and never allocates what it claims to
// hold.
#include "inputs/files/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/system/atomic_file.h"
#include "core/system/printable.h"

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

 private:
  int fd_;
};

/// Copies bytes [offset, offset + out.size()) of the file into out.
using ReadBytes = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

/// The checked header; `data_start` is where the tensors' bytes begin.
SafetensorsHeader read_header(const ReadBytes& read, std::uint64_t file_bytes,
                              const std::string& name, std::uint64_t& data_start) {
  std::byte prefix[kSafetensorsPrefixBytes] = {};
  if (file_bytes >= kSafetensorsPrefixBytes) read(0, prefix);
  const std::uint64_t header_bytes = checked_header_length(prefix, file_bytes, name);
  std::string text(header_bytes, '\0');
  read(kSafetensorsPrefixBytes, std::as_writable_bytes(std::span(text)));
  data_start = kSafetensorsPrefixBytes + header_bytes;
  return parse_safetensors_header(text, file_bytes - data_start, name);
}

SafetensorsFile read_from(const ReadBytes& read, std::uint64_t file_bytes,
                          const std::string& name) {
  std::uint64_t data_start = 0;
  SafetensorsHeader header = read_header(read, file_bytes, name, data_start);
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

/// A regular file, open for reading.
class OpenFile {
 public:
  // Why O_NONBLOCK: opening a named pipe must not wait for its writer.
  explicit OpenFile(const fs::path& path)
      : name_(path.string()), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_.get() < 0) fail(ErrorKind::kIo, "cannot open '{}': {}", name_, std::strerror(errno));
    struct stat info = {};
    if (::fstat(file_.get(), &info) != 0) {
      fail(ErrorKind::kIo, "cannot read '{}': {}", name_, std::strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) fail(ErrorKind::kIo, "'{}' is not a regular file", name_);
    size_bytes_ = static_cast<std::uint64_t>(info.st_size);
  }

  std::uint64_t size_bytes() const { return size_bytes_; }
  ReadBytes reader() const {
    return [this](std::uint64_t offset, std::span<std::byte> out) {
      read_fully(file_.get(), offset, out, name_);
    };
  }

 private:
  std::string name_;
  FileDescriptor file_;
  std::uint64_t size_bytes_ = 0;
};

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
  const OpenFile file(path);
  return read_from(file.reader(), file.size_bytes(), path.string());
}

SafetensorsReader::SafetensorsReader(const fs::path& path) : name_(path.string()) {
  const OpenFile file(path);
  file_bytes_ = file.size_bytes();
  header_ = read_header(file.reader(), file_bytes_, name_, data_start_);
}

const SafetensorsEntry* SafetensorsReader::find(const std::string& tensor) const {
  for (const SafetensorsEntry& entry : header_.entries) {
    if (entry.name == tensor) return &entry;
  }
  return nullptr;
}

Tensor SafetensorsReader::read(const SafetensorsEntry& entry) const {
  const auto dtype = dtype_from_safetensors_name(entry.dtype);
  if (!dtype) {
    fail(ErrorKind::kDtype, "{}: tensor '{}': dtype {} is not supported", name_, shown(entry.name),
         entry.dtype);
  }
  const OpenFile file(name_);
  if (file.size_bytes() != file_bytes_) {
    fail(ErrorKind::kIo, "'{}' changed while it was read", name_);
  }
  Tensor tensor(*dtype, entry.shape);
  file.reader()(data_start_ + entry.begin, {tensor.bytes(), tensor.size_bytes()});
  return tensor;
}

void SafetensorsReader::stream(const SafetensorsEntry& entry,
                               const std::function<void(std::span<const std::byte>)>& take) const {
  constexpr std::uint64_t kPieceBytes = 4 << 20;
  const OpenFile file(name_);
  if (file.size_bytes() != file_bytes_) {
    fail(ErrorKind::kIo, "'{}' changed while it was read", name_);
  }
  std::vector<std::byte> piece(std::min(kPieceBytes, entry.end - entry.begin));
  for (std::uint64_t at = entry.begin; at < entry.end; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), entry.end - at));
    file.reader()(data_start_ + at, piece);
    take(piece);
  }
}

void write_safetensors(const fs::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<std::size_t> order = data_order(tensors);
  const std::string header = encode_header(tensors, order, metadata);
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(header))};
  for (const std::size_t i : order) {
    parts.emplace_back(tensors[i].second->bytes(), tensors[i].second->size_bytes());
  }
  write_file_atomically(path, parts);
}

}  // namespace attnbench
