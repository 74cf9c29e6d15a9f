#include "inputs/files/safetensors.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/test_folder.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

/// Length field, header and data as a file has them.
std::string file_bytes(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return bytes + header + std::string(data_bytes, '\1');
}

SafetensorsFile parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "test.safetensors");
}

/// Message of the E-FORMAT that parsing ends in.
std::string format_error(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    CHECK(std::string(error.what()).find("test.safetensors") != std::string::npos);
    CHECK(std::strlen(error.what()) < 1000);
    return error.what();
  }
  return "no error";
}

std::string format_error_of(const std::string& header, std::size_t data_bytes) {
  return format_error(file_bytes(header, data_bytes));
}

bool has_part(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("tensors and metadata survive being written and read") {
  const TestFolder folder;
  const Tensor bytes = [] {
    Tensor t(Dtype::kU8, {3});
    for (int i = 0; i < 3; ++i) t.set(i, static_cast<float>(i + 1));
    return t;
  }();
  const std::array<float, 4> floats{1.5f, -0.0f, 1e-40f, 3e38f};
  const Tensor matrix = Tensor::from_f32(floats, {2, 2});
  const Tensor empty(Dtype::kBF16, {0, 7});
  const Tensor scalar(Dtype::kF64, {});
  const fs::path path = folder / "a.safetensors";
  write_safetensors(path, {{"bytes", &bytes}, {"m", &matrix}, {"none", &empty}, {"s", &scalar}},
                    {{"problem", "{\"a\": \"\xC3\xA4\\n\"}"}});
  const SafetensorsFile file = read_safetensors(path);
  CHECK(file.tensors.size() == 4);
  CHECK(file.metadata.at("problem") == "{\"a\": \"\xC3\xA4\\n\"}");
  REQUIRE(file.find("m") != nullptr);
  CHECK(file.find("m")->shape() == matrix.shape());
  CHECK(std::memcmp(file.find("m")->bytes(), matrix.bytes(), matrix.size_bytes()) == 0);
  CHECK(file.find("none")->shape() == empty.shape());
  CHECK(file.find("none")->dtype() == Dtype::kBF16);
  CHECK(file.find("s")->shape().empty());
  CHECK(file.find("bytes")->at(2) == 3.0f);
  CHECK(file.find("absent") == nullptr);
  CHECK(folder.num_files() == 1);
}

TEST_CASE("a written header is padded to 8 bytes and every tensor is aligned to its elements") {
  const TestFolder folder;
  const Tensor odd(Dtype::kI8, {5});
  const Tensor wide(Dtype::kF64, {2});
  const Tensor half(Dtype::kF16, {3});
  const fs::path path = folder / "a.safetensors";
  write_safetensors(path, {{"odd", &odd}, {"half", &half}, {"wide", &wide}}, {});
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  CHECK(static_cast<unsigned char>(bytes[0]) % 8 == 0);
  CHECK(has_part(bytes, "\"wide\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]}"));
  CHECK(has_part(bytes, "\"half\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[16,22]}"));
  CHECK(has_part(bytes, "\"odd\":{\"dtype\":\"I8\",\"shape\":[5],\"data_offsets\":[22,27]}"));
}

TEST_CASE("a file of the Python package is read") {
  // safetensors.numpy.save({"w": float32 [[1, 2], [3, -4]], "i": int64 [7], "h": float16 [0.5]},
  // {"format": "np"}), recorded as its bytes.
  const std::string header =
      R"({"__metadata__":{"format":"np"},"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
      R"("h":{"dtype":"F16","shape":[1],"data_offsets":[24,26]}}    )";
  std::string bytes = file_bytes(header, 0);
  bytes +=
      std::string("\x07\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\xc0\0\x38", 26);
  const SafetensorsFile file = parse(bytes);
  CHECK(file.metadata.at("format") == "np");
  CHECK(file.find("i")->data<std::int64_t>()[0] == 7);
  CHECK(file.find("w")->at(3) == -4.0f);
  CHECK(file.find("h")->at(0) == 0.5f);
}

TEST_CASE("an empty header and trailing spaces are fine") {
  CHECK(parse(file_bytes("{}", 0)).tensors.empty());
  CHECK(parse(file_bytes("{}      ", 0)).tensors.empty());
}

TEST_CASE("dtypes that only the format has are checked and left out") {
  const std::string header =
      R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})";
  const SafetensorsFile file = parse(file_bytes(header, 4));
  CHECK(file.tensors.size() == 1);
  CHECK(file.find("b") != nullptr);
  CHECK(has_part(format_error_of(R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,4]}})", 4),
                 "need 3 bytes"));
}

TEST_CASE("every truncation of a valid file is E-FORMAT") {
  const std::string whole =
      file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  CHECK_NOTHROW(parse(whole));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK(format_error(whole.substr(0, length)) != "no error");
  }
}

TEST_CASE("a header longer than the file or than 100 MB is refused before it is read") {
  std::string bytes = file_bytes("{}", 0);
  bytes[0] = 100;
  CHECK(has_part(format_error(bytes), "truncated: header of 100 bytes in a file of 10"));
  bytes[7] = '\x7f';
  CHECK(has_part(format_error(bytes), "at most 100000000 allowed"));
  for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = '\xff';
  CHECK(has_part(format_error(bytes), "at most 100000000 allowed"));
}

TEST_CASE("byte ranges must tile the data without overlap, hole or rest") {
  const auto two = [](const char* first, const char* second) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
        first, second);
  };
  CHECK(parse(file_bytes(two("[4,8]", "[0,4]"), 8)).tensors.size() == 2);
  CHECK(has_part(format_error_of(two("[0,4]", "[3,7]"), 7), "overlap"));
  CHECK(has_part(format_error_of(two("[0,4]", "[0,4]"), 4), "overlap"));
  CHECK(has_part(format_error_of(two("[0,4]", "[5,9]"), 9), "hole"));
  CHECK(has_part(format_error_of(two("[1,5]", "[5,9]"), 9), "hole"));
  CHECK(has_part(format_error_of(two("[0,4]", "[4,8]"), 9), "the file has 9"));
  CHECK(has_part(format_error_of(two("[0,4]", "[4,8]"), 7), "ends at byte 8"));
  CHECK(has_part(format_error_of(two("[4,0]", "[4,8]"), 8), "data_offsets are 4..0"));
  CHECK(has_part(format_error_of("{}", 1), "need 0 bytes"));
}

TEST_CASE("shapes that overflow or disagree with their bytes are refused") {
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                       offsets);
  };
  CHECK(has_part(format_error_of(one("F32", "[4611686018427387904,4]", "[0,0]"), 0), "overflows"));
  CHECK(has_part(format_error_of(one("F32", "[4611686018427387904]", "[0,0]"), 0), "overflows"));
  CHECK(has_part(format_error_of(one("U8", "[9223372036854775808]", "[0,8]"), 8), "too large"));
  CHECK(has_part(format_error_of(one("U8", "[9223372036854775807,2]", "[0,8]"), 8), "need"));
  CHECK(has_part(format_error_of(one("U8", "[18446744073709551616]", "[0,8]"), 8), "expected"));
  CHECK(has_part(
      format_error_of(one("U8", "[4611686018427387904,4611686018427387904,0]", "[0,0]"), 0),
      "overflows"));
  CHECK(has_part(format_error_of(one("U8", "[-1]", "[0,8]"), 8), "extent >= 0, got -1"));
  CHECK(has_part(format_error_of(one("U8", "[1.5]", "[0,8]"), 8), "extent >= 0"));
  CHECK(has_part(format_error_of(one("F16", "[3]", "[0,8]"), 8), "need 6 bytes"));
  CHECK(has_part(format_error_of(one("F17", "[4]", "[0,8]"), 8), "unknown dtype 'F17'"));
  CHECK(has_part(format_error_of(one("U8", "[8]", "[0,18446744073709551615]"), 8), "need 8 bytes"));
  CHECK(has_part(format_error_of(one("U8", "[8]", "[0]"), 8), "expected 2 numbers, got 1"));
  CHECK(has_part(format_error_of(one("U8", "[8]", "[0,8,8]"), 8), "expected 2 numbers, got 3"));
  CHECK(has_part(format_error_of(one("U8", "8", "[0,8]"), 8), "array of extents"));
  CHECK(has_part(format_error_of(one("U8", "[[8]]", "[0,8]"), 8), "extent >= 0"));
}

TEST_CASE("duplicate, missing and unknown keys are refused") {
  const std::string a = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(has_part(format_error_of("{" + a + "," + a + "}", 0), "duplicate name 'a'"));
  CHECK(has_part(format_error_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "duplicate name"));
  CHECK(has_part(format_error_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "duplicate key 'k'"));
  CHECK(has_part(format_error_of(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0), "duplicate key"));
  CHECK(has_part(format_error_of(R"({"a":{"dtype":"U8","shape":[0]}})", 0),
                 "expected dtype, shape and data_offsets"));
  CHECK(has_part(format_error_of(R"({"a":{"color":1}})", 0), "unexpected key 'color'"));
  CHECK(has_part(format_error_of(R"({"__metadata__":{"k":1}})", 0), "expected a string"));
  CHECK(has_part(format_error_of(R"({"a":null})", 0), "got null"));
}

TEST_CASE("headers that are no JSON object are refused with the place") {
  CHECK(has_part(format_error_of("[]", 0), "does not begin with"));
  CHECK(has_part(format_error_of(" {}", 0), "does not begin with"));
  CHECK(has_part(format_error_of("\xEF\xBB\xBF{}", 0), "does not begin with"));
  CHECK(has_part(format_error_of("", 0), "does not begin with"));
  CHECK(has_part(format_error_of("{\"a\"", 0), "not valid JSON"));
  CHECK(has_part(format_error_of("{} {}", 0), "not valid JSON"));
  CHECK(has_part(format_error_of("{\"\xFF\":{}}", 0), "not valid JSON"));
  CHECK(has_part(format_error_of(std::string("{\0}", 3), 0), "not valid JSON"));
  CHECK(has_part(format_error_of("{\"" + std::string(100000, 'n') + "\":1}", 0), "nnn..."));
}

TEST_CASE("ten million nested brackets are refused at once") {
  const std::string brackets(10'000'000, '[');
  CHECK(has_part(format_error_of("{\"a\":" + brackets, 0), "got an array"));
  std::string objects = "{";
  for (int i = 0; i < 1'000'000; ++i) objects += "\"a\":{";
  CHECK(has_part(format_error_of(objects, 0), "unexpected key 'a'"));
}

TEST_CASE("unreadable paths are E-IO naming the path") {
  const TestFolder folder;
  const fs::path pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const fs::path& path : {folder / "absent", folder / ".", pipe, fs::path("/dev/zero")}) {
    try {
      read_safetensors(path);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kIo);
      CHECK(has_part(error.what(), path.c_str()));
    }
  }
}

TEST_CASE("a path that cannot be written is E-IO and leaves nothing behind") {
  const TestFolder folder;
  const Tensor tensor(Dtype::kU8, {1});
  fs::create_directory(folder / "taken");
  for (const fs::path& path : {folder / "absent/a", folder / "taken"}) {
    try {
      write_safetensors(path, {{"a", &tensor}}, {});
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kIo);
      CHECK(has_part(error.what(), path.c_str()));
    }
  }
  CHECK(folder.num_files() == 1);
}

TEST_CASE("writing replaces an existing file whole") {
  const TestFolder folder;
  const fs::path path = folder / "a.safetensors";
  const Tensor large(Dtype::kU8, {1000});
  const Tensor small(Dtype::kU8, {1});
  write_safetensors(path, {{"a", &large}}, {});
  write_safetensors(path, {{"a", &small}}, {});
  CHECK(read_safetensors(path).find("a")->num_elements() == 1);
}

}  // namespace
}  // namespace attnbench
