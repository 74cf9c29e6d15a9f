// attnbench device: what there is to run on, and what it can do at best.
//
// What is measured are the ceilings that the column "roof" of `run` relates a case to: rates of
// copying, of reading and of matrix products.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/options/shared_options.h"
#include "cli/outputs.h"
#include "core/error.h"
#include "measure/cpu_measure.h"
#include "measure/cuda_ceilings.h"
#include "measure/measure.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

struct DeviceArguments {
  std::string json;
  std::string cache_dir;
  bool no_timing = false;
};

/// Everything the command knows; a ceiling that was not measured is 0.
struct Inventory {
  CpuInfo cpu;
  CpuCeilings cpu_ceilings;
  std::string no_cuda;  // why there are no CUDA devices
  std::vector<CudaDevice> cuda;
};

Inventory take_inventory(const DeviceArguments& arguments) {
  Inventory inventory;
  inventory.cpu = describe_run({}).environment.cpu;
  if (!arguments.no_timing) inventory.cpu_ceilings = measure_cpu_ceilings(0);
  inventory.cuda = list_cuda_devices(inventory.no_cuda);
  if (arguments.no_timing) return inventory;
  for (CudaDevice& device : inventory.cuda) measure_ceilings(device, arguments.cache_dir);
  return inventory;
}

/// "787.6 TFLOP/s", or "-" for what was not measured.
std::string rate(double value, const char* unit) {
  return value > 0 ? fmt::format("{:.1f} {}", value, unit) : "-";
}

/// A GPU in a few lines; without the rates unless `measured`.
void print_cuda(std::ostream& out, const CudaDevice& device, bool measured) {
  const DeviceInfo& info = device.info;
  const CudaCeilings& ceilings = device.ceilings;
  constexpr double kGiB = 1 << 30;
  constexpr double kMiB = 1 << 20;
  out << fmt::format("cuda:{}  {}, sm_{}, {} multiprocessors\n", info.index, info.name, info.sm,
                     info.num_sms);
  out << fmt::format("  memory    {:.1f} GiB, second-level cache {:.0f} MiB\n",
                     static_cast<double>(info.memory_bytes) / kGiB,
                     static_cast<double>(info.l2_bytes) / kMiB);
  out << fmt::format("  software  driver for CUDA {}, runtime {}\n", info.driver, info.runtime);
  if (!measured) return;
  out << fmt::format("  copy      {}\n", rate(ceilings.copy_gbps, "GB/s, read and written"));
  out << fmt::format("  read      {}, streaming {}\n", rate(ceilings.read_gbps, "GB/s"),
                     rate(ceilings.streaming_read_gbps, "GB/s"));
  out << fmt::format("  matrix    float32 {}\n", rate(ceilings.fp32_tflops, "TFLOP/s"));
  out << fmt::format("            bfloat16 {}, float16 {}\n", rate(ceilings.bf16_tflops, "TFLOP/s"),
                     rate(ceilings.fp16_tflops, "TFLOP/s"));
  out << fmt::format("            fp8 {}, int8 {}\n", rate(ceilings.fp8_tflops, "TFLOP/s"),
                     rate(ceilings.int8_tops, "TOP/s"));
  for (const std::string& what : ceilings.missing) out << "  " << what << "\n";
}

void print(std::ostream& out, const Inventory& inventory, bool measured) {
  out << fmt::format("cpu     {}, {} cores\n", inventory.cpu.model, inventory.cpu.cores);
  out << fmt::format("  compiled for {}\n", inventory.cpu.features);
  if (measured) {
    out << fmt::format("  memory    {}\n", rate(inventory.cpu_ceilings.gbps, "GB/s"));
    out << fmt::format("  float32   {}\n", rate(inventory.cpu_ceilings.gflops, "GFLOP/s"));
  }
  if (inventory.cuda.empty()) out << "cuda    " << inventory.no_cuda << "\n";
  for (const CudaDevice& device : inventory.cuda) print_cuda(out, device, measured);
}

/// JSON has no number for what was not measured.
Json measured_or_null(double value) { return value > 0 ? Json(value) : Json(nullptr); }

Json to_json(const Inventory& inventory) {
  Json json = {{"schema_version", 1}};
  json["cpu"] = {{"model", inventory.cpu.model},
                 {"cores", inventory.cpu.cores},
                 {"features", inventory.cpu.features},
                 {"memory_gbps", measured_or_null(inventory.cpu_ceilings.gbps)},
                 {"float32_gflops", measured_or_null(inventory.cpu_ceilings.gflops)}};
  json["devices"] = Json::array();
  for (const CudaDevice& device : inventory.cuda) {
    const DeviceInfo& info = device.info;
    const CudaCeilings& ceilings = device.ceilings;
    json["devices"].push_back(
        {{"device", fmt::format("cuda:{}", info.index)},
         {"name", info.name},
         {"sm", info.sm},
         {"num_sms", info.num_sms},
         {"memory_bytes", info.memory_bytes},
         {"l2_bytes", info.l2_bytes},
         {"driver", info.driver},
         {"runtime", info.runtime},
         {"copy_gbps", measured_or_null(ceilings.copy_gbps)},
         {"read_gbps", measured_or_null(ceilings.read_gbps)},
         {"streaming_read_gbps", measured_or_null(ceilings.streaming_read_gbps)},
         {"fp32_tflops", measured_or_null(ceilings.fp32_tflops)},
         {"bf16_tflops", measured_or_null(ceilings.bf16_tflops)},
         {"fp16_tflops", measured_or_null(ceilings.fp16_tflops)},
         {"fp8_tflops", measured_or_null(ceilings.fp8_tflops)},
         {"int8_tops", measured_or_null(ceilings.int8_tops)},
         {"missing", ceilings.missing}});
  }
  if (inventory.cuda.empty()) json["no_cuda"] = inventory.no_cuda;
  return json;
}

int show_devices(const DeviceArguments& arguments, const Console& console) {
  check_output_paths({}, {{"--json", arguments.json}});
  const Inventory inventory = take_inventory(arguments);
  if (arguments.json != "-") print(console.out, inventory, !arguments.no_timing);
  if (!arguments.json.empty()) write_text(arguments.json, to_json(inventory).dump(2) + "\n");
  return kExitPassed;
}

}  // namespace

RunCommand declare_device(OptionTable& options) {
  auto arguments = std::make_shared<DeviceArguments>();
  options.add({.names = "--no-timing",
               .help = "List the devices without measuring them",
               .target = &arguments->no_timing});
  options.add({.names = "--json",
               .value = "FILE",
               .help = "Write a JSON file (- = standard output)",
               .target = &arguments->json});
  add_cache_dir_option(options, "", arguments->cache_dir);
  return [arguments](const Console& console) { return show_devices(*arguments, console); };
}

}  // namespace attnbench
