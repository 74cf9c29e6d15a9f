// The text is a row of fixed-size numbers and of strings with their lengths before them.
#include "bench/process/parcel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "core/error.h"

namespace attnbench {
namespace {

/// Read and given back in pieces of this size, so that little is there twice.
constexpr std::size_t kPiece = std::size_t{64} << 20;
constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kMostTensors = 64;
constexpr std::uint32_t kMostDims = 8;

void write_at(int file, const std::byte* bytes, std::size_t count, std::size_t offset) {
  while (count > 0) {
    const ssize_t written =
        ::pwrite(file, bytes, std::min(count, kPiece), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(ErrorKind::kCapacity, "no memory to hand an output in");
    bytes += written;
    offset += static_cast<std::size_t>(written);
    count -= static_cast<std::size_t>(written);
  }
}

/// False where the file ends early.
bool read_at(int file, std::byte* bytes, std::size_t count, std::size_t offset) {
  while (count > 0) {
    const ssize_t read = ::pread(file, bytes, std::min(count, kPiece), static_cast<off_t>(offset));
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return false;
    // Whole pages; what is left of one goes with the file.
    ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(read));
    bytes += read;
    offset += static_cast<std::size_t>(read);
    count -= static_cast<std::size_t>(read);
  }
  return true;
}

/// The largest number where the product is larger than any, or an extent is negative.
std::size_t bytes_of(Dtype dtype, const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kNoMemory = std::numeric_limits<std::size_t>::max();
  std::size_t bytes = dtype_size(dtype);
  for (const std::int64_t extent : shape) {
    const bool overflows =
        extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes);
    if (overflows) return kNoMemory;
  }
  return bytes;
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

Descriptor new_memory_file(std::size_t bytes) {
  Descriptor file(memfd_create("attnbench ranks", MFD_CLOEXEC));
  if (file.get() < 0 || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    fail(ErrorKind::kCapacity, "no memory for an exchange of {} bytes", bytes);
  }
  return file;
}

MappedFile::MappedFile(int file, std::size_t size) : size_(size) {
  if (size == 0) return;
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    size_ = 0;
    fail(ErrorKind::kCapacity, "no memory for an exchange of {} bytes", size);
  }
  data_ = static_cast<std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

ParcelWriter::ParcelWriter() : file_(memfd_create("attnbench output", MFD_CLOEXEC)) {
  if (file_.get() < 0) {
    fail(ErrorKind::kCapacity, "no memory to hand an output in: {}", std::strerror(errno));
  }
}

void ParcelWriter::string(const std::string& value) {
  number(static_cast<std::uint64_t>(value.size()));
  text_ += value;
}

void ParcelWriter::tensor(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  const bool is_whole = count < 0;
  number(static_cast<std::uint32_t>(tensor.dtype()));
  number(static_cast<std::uint32_t>(tensor.shape().size()));
  for (std::size_t axis = 0; axis < tensor.shape().size(); ++axis) {
    number(axis == 0 && !is_whole ? count : tensor.shape()[axis]);
  }
  std::size_t size = tensor.size_bytes();
  std::size_t begin = 0;
  if (!is_whole && size > 0) {
    const std::size_t row = size / static_cast<std::size_t>(tensor.dim(0));
    begin = row * static_cast<std::size_t>(first);
    size = row * static_cast<std::size_t>(count);
  }
  write_at(file_.get(), tensor.bytes() + begin, size, offset_);
  offset_ += whole_pages(size);
}

void ParcelWriter::optional_tensor(const std::optional<Tensor>& tensor) {
  number(static_cast<std::uint8_t>(tensor.has_value()));
  if (tensor) this->tensor(*tensor);
}

void ParcelWriter::output(PipelineOutput&& taken) {
  string(taken.defect);
  number(static_cast<std::uint8_t>(taken.declared_lse.has_value()));
  const LseConvention declared = taken.declared_lse.value_or(LseConvention{});
  number(static_cast<std::uint8_t>(declared.base_two));
  number(static_cast<std::uint8_t>(declared.empty_is_plus_inf));
  tensor(std::exchange(taken.output, Tensor()));
  optional_tensor(std::exchange(taken.lse, std::nullopt));
  optional_tensor(std::exchange(taken.cache, std::nullopt));
  optional_tensor(std::exchange(taken.key_scale_cache, std::nullopt));
  number(static_cast<std::uint32_t>(taken.more.size()));
  for (auto& [name, more] : taken.more) {
    string(name);
    tensor(std::exchange(more, Tensor()));
  }
  taken = {};
}

ParcelReader::ParcelReader(const std::string& text, const Descriptor& file)
    : text_(text), file_(file.get()) {
  struct stat status {};
  if (file_ < 0 || ::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) fail_to_read();
  size_ = static_cast<std::size_t>(status.st_size);
}

void ParcelReader::fail_to_read() {
  fail(ErrorKind::kInternal, "an output was handed in that cannot be read");
}

void ParcelReader::copy(void* value, std::size_t size) {
  if (text_.size() - at_ < size) fail_to_read();
  std::memcpy(value, text_.data() + at_, size);
  at_ += size;
}

std::string ParcelReader::string() {
  const auto size = number<std::uint64_t>();
  if (size > text_.size() - at_) fail_to_read();
  at_ += size;
  return text_.substr(at_ - size, size);
}

Tensor ParcelReader::tensor() {
  const auto dtype = static_cast<Dtype>(below(static_cast<std::uint32_t>(Dtype::kU8) + 1));
  std::vector<std::int64_t> shape(below(kMostDims + 1));
  for (std::int64_t& extent : shape) extent = number<std::int64_t>();
  // Before there is a tensor: what the text says must not cost more memory than the file has.
  if (offset_ > size_ || bytes_of(dtype, shape) > size_ - offset_) fail_to_read();
  Tensor tensor(dtype, std::move(shape));
  const std::size_t bytes = tensor.size_bytes();
  if (!read_at(file_, tensor.bytes(), bytes, offset_)) fail_to_read();
  offset_ += whole_pages(bytes);
  return tensor;
}

std::optional<Tensor> ParcelReader::optional_tensor() {
  if (!flag()) return std::nullopt;
  return tensor();
}

PipelineOutput ParcelReader::output() {
  PipelineOutput output;
  output.defect = string();
  const bool is_declared = flag();
  LseConvention declared;
  declared.base_two = flag();
  declared.empty_is_plus_inf = flag();
  if (is_declared) output.declared_lse = declared;
  output.output = tensor();
  output.lse = optional_tensor();
  output.cache = optional_tensor();
  output.key_scale_cache = optional_tensor();
  const auto count = below(kMostTensors);
  for (std::uint32_t i = 0; i < count; ++i) {
    std::string name = string();
    output.more.emplace_back(std::move(name), tensor());
  }
  return output;
}

void ParcelReader::end() const {
  if (at_ != text_.size()) fail_to_read();
}

}  // namespace attnbench
