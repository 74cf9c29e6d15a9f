// The table of operations, and that wrappers of Ops miss none of them.
#include "ops/operation_table.h"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "ops/forwarding_ops.h"

namespace attnbench {
namespace {

class NoMemory final : public Buffer {
 public:
  void* data() override { return nullptr; }
  std::size_t size_bytes() const override { return 0; }
};

/// Ops that do nothing but note what they were called with.
class NotingOps final : public Ops {
 public:
  /// Name and arguments of each call.
  mutable std::vector<std::string> calls;

  std::string device_name() const override {
    note("device_name");
    return "noting";
  }
  int num_sms() const override {
    note("num_sms");
    return 7;
  }
  int sm() const override {
    note("sm");
    return 100;
  }
  void force_kernel(std::string_view name) override { note("force_kernel", name); }
  TileUse tile_use(const attn::AttendParams&) const override {
    note("tile_use");
    return TileUse::kAlways;
  }
  TileUse beside_use(const attn::AttendParams&) const override {
    note("beside_use");
    return TileUse::kWhereItPays;
  }
  ApartUse apart_use(const attn::AttendParams&) const override {
    note("apart_use");
    return ApartUse::kAlways;
  }
  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    note("allocate", size_bytes, name);
    return std::make_unique<NoMemory>();
  }
  bool place_buffers(Placement placement) override {
    note("place_buffers", static_cast<int>(placement));
    return true;
  }
  std::vector<std::string> edges() const override {
    note("edges");
    return {"key"};
  }
  void close_edges(const std::string& name) override { note("close_edges", name); }
  void upload(Buffer& destination, const void* source, std::size_t size_bytes) override {
    note("upload", &destination, source, size_bytes);
  }
  void download(void* destination, Buffer& source, std::size_t size_bytes,
                std::size_t offset_bytes) override {
    note("download", destination, &source, size_bytes, offset_bytes);
  }
  void poison(Buffer& buffer) override { note("poison", &buffer); }
  void synchronize() override { note("synchronize"); }
  void wait() override { note("wait"); }
  void settle() override { note("settle"); }
  void on_wait(std::function<void(const std::string& kernels)> listener) override {
    note("on_wait");
    listener("heard");
  }
  void* stream_for(const std::string& name) override {
    note("stream_for", name);
    return this;
  }
  std::vector<KernelInfo> take_kernels() override {
    note("take_kernels");
    return std::vector<KernelInfo>(3);
  }
  void prepare_matmul(const attn::MatmulParams& params) override {
    note_operation("prepare_matmul", params);
  }
  bool takes_rope_apart(const attn::AttendParams&) const override {
    note("takes a rope apart");
    return true;
  }
  WideUse wide_use(const attn::AttendParams&) const override {
    note("wide_use");
    return WideUse::kAlways;
  }
  bool fuses(const attn::LatentQueryParams&) const override {
    note("fuses a query");
    return true;
  }
  bool fuses(const attn::ValueOutputParams&) const override {
    note("fuses an output");
    return true;
  }

#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name parameters override { note_operation(#name, ATTNBENCH_LIST arguments); }
#include "ops/operations.def"

 private:
  template <typename... Arguments>
  void note(const char* name, const Arguments&... arguments) const {
    std::ostringstream call;
    call << name;
    ((call << ' ' << arguments), ...);
    calls.push_back(call.str());
  }
  /// The addresses of the parameter structs say which they are.
  template <typename... Params>
  void note_operation(const char* name, const Params&... params) {
    note(name, static_cast<const void*>(&params)...);
  }
};

/// Calls `operation` with parameters of nothing; "attend 0x1234", as NotingOps notes it.
template <typename... Params>
std::string call(Ops& ops, const std::string& name, void (Ops::*operation)(const Params&...)) {
  const std::tuple<Params...> params{};
  std::ostringstream expected;
  expected << name;
  std::apply(
      [&](const Params&... each) {
        ((expected << ' ' << static_cast<const void*>(&each)), ...);
        (ops.*operation)(each...);
      },
      params);
  return expected.str();
}

/// One in a line, so that a failing comparison can be read.
std::string lines(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return all;
}

/// Declarations of virtual functions in `header`, destructors aside, that are not pure.
std::string defaults_in(const std::string& header) {
  std::vector<std::string> found;
  const std::string word = "virtual ";
  for (std::size_t at = header.find(word); at != std::string::npos;
       at = header.find(word, at + 1)) {
    const std::string declaration = header.substr(at, header.find_first_of(";{", at) - at);
    if (declaration.starts_with("virtual ~") || declaration.ends_with(" = 0")) continue;
    found.push_back(declaration);
  }
  return lines(found);
}

}  // namespace

TEST_CASE("ForwardingOps passes every operation of the table on, with its own parameters") {
  NotingOps inner;
  ForwardingOps outer(inner);
  std::vector<std::string> expected;
#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  expected.push_back(call(outer, #name, &Ops::name));
#include "ops/operations.def"
  CHECK(lines(inner.calls) == lines(expected));
  CHECK(expected.size() == std::size(kOperationNames));
}

TEST_CASE("ForwardingOps passes on what is not an operation, and gives back what comes of it") {
  NotingOps inner;
  ForwardingOps outer(inner);
  CHECK(outer.device_name() == "noting");
  CHECK(outer.num_sms() == 7);
  outer.force_kernel("prefill");
  CHECK(outer.tile_use({}) == TileUse::kAlways);
  CHECK(outer.beside_use({}) == TileUse::kWhereItPays);
  CHECK(outer.apart_use({}) == ApartUse::kAlways);
  const std::unique_ptr<Buffer> buffer = outer.allocate(12, "lse");
  CHECK(outer.place_buffers(Placement::kAtEnd));
  CHECK(outer.edges() == std::vector<std::string>{"key"});
  outer.close_edges("key");
  char byte = 0;
  outer.upload(*buffer, &byte, 5);
  outer.download(&byte, *buffer, 6, 4);
  outer.poison(*buffer);
  outer.synchronize();
  outer.wait();
  outer.settle();
  std::string heard;
  outer.on_wait([&](const std::string& kernels) { heard = kernels; });
  CHECK(heard == "heard");
  CHECK(outer.stream_for("run() of MINE") == &inner);
  CHECK(outer.take_kernels().size() == 3);
  const std::string prepared = call(outer, "prepare_matmul", &Ops::prepare_matmul);
  CHECK(outer.takes_rope_apart({}));
  CHECK(outer.wide_use({}) == WideUse::kAlways);
  CHECK(outer.fuses(attn::LatentQueryParams{}));
  CHECK(outer.fuses(attn::ValueOutputParams{}));

  std::ostringstream expected;
  const void* host = &byte;
  expected << "device_name\nnum_sms\nforce_kernel prefill\ntile_use\nbeside_use\napart_use\n"
           << "allocate 12 lse\nplace_buffers 1\nedges\nclose_edges key\nupload " << buffer.get()
           << ' ' << host << " 5\ndownload " << host << ' ' << buffer.get() << " 6 4\npoison "
           << buffer.get()
           << "\nsynchronize\nwait\nsettle\non_wait\nstream_for run() of MINE\ntake_kernels\n"
           << prepared << "\ntakes a rope apart\nwide_use\nfuses a query\nfuses an output\n";
  CHECK(lines(inner.calls) == expected.str());
}

TEST_CASE("no function of Ops has a default that a wrapper could get unnoticed") {
  const std::string planted = defaults_in(
      "virtual ~Ops() = default;\n  virtual void a() {}\n  virtual int b(int c,\n"
      "      int d) = 0;\n  virtual void e();\n");
  CHECK(planted == "virtual void a() \nvirtual void e()\n");
  std::ifstream file(ATTNBENCH_SOURCE_DIR "/src/ops/ops.h");
  std::ostringstream header;
  header << file.rdbuf();
  CHECK(header.str().find("virtual void synchronize() = 0;") != std::string::npos);
  CHECK(defaults_in(header.str()) == "");
}

}  // namespace attnbench
