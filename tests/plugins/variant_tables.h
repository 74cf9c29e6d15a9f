// The tables of a library whose backends are variants of one: a row of `variants` each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attnbench_backend.h"

/// Table `index` with what all of them have (version of the interface, name and row of the variant,
/// the CPU), for the rest to be filled in; null behind the last one. Variants have a `name`.
template <class Variant, std::size_t kCount>
AttnbenchBackend* variant_table(const Variant (&variants)[kCount], uint32_t index) {
  static AttnbenchBackend tables[kCount];
  if (index >= kCount) return nullptr;
  AttnbenchBackend& table = tables[index];
  table.struct_size = sizeof table;
  table.abi_version = ATTNBENCH_ABI_VERSION;
  table.name = variants[index].name;
  table.version = "0.1";
  table.user = &variants[index];
  table.devices = ATTNBENCH_CPU;
  return &table;
}
