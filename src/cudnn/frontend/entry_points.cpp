// The functions that the headers of cudnn-frontend call, as the library has them that was opened at
// run time: nothing of cuDNN and of the driver is linked.
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nvrtc.h>

#include "cudnn/frontend.h"

namespace attnbench {
namespace {

struct EntryPoints {
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetStream) get_stream = nullptr;
  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnGetErrorString) get_error_string = nullptr;
  decltype(&cudnnGetLastErrorString) get_last_error_string = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

  bool bind(const DynamicLibrary& library) {
    return library.bind(create, "cudnnCreate") && library.bind(destroy, "cudnnDestroy") &&
           library.bind(set_stream, "cudnnSetStream") &&
           library.bind(get_stream, "cudnnGetStream") &&
           library.bind(get_version, "cudnnGetVersion") &&
           library.bind(get_error_string, "cudnnGetErrorString") &&
           library.bind(get_last_error_string, "cudnnGetLastErrorString") &&
           library.bind(create_descriptor, "cudnnBackendCreateDescriptor") &&
           library.bind(destroy_descriptor, "cudnnBackendDestroyDescriptor") &&
           library.bind(set_attribute, "cudnnBackendSetAttribute") &&
           library.bind(get_attribute, "cudnnBackendGetAttribute") &&
           library.bind(finalize, "cudnnBackendFinalize") &&
           library.bind(execute, "cudnnBackendExecute");
  }
};

EntryPoints& entry_points() {
  static EntryPoints entry_points;
  return entry_points;
}

}  // namespace

bool bind_cudnn(const DynamicLibrary& library) { return entry_points().bind(library); }

}  // namespace attnbench

using attnbench::entry_points;

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return entry_points().create(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return entry_points().destroy(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return entry_points().set_stream(handle, stream);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return entry_points().get_stream(handle, stream);
}
size_t cudnnGetVersion() { return entry_points().get_version(); }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return entry_points().get_error_string(status);
}
void cudnnGetLastErrorString(char* message, size_t max_size) {
  entry_points().get_last_error_string(message, max_size);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return entry_points().create_descriptor(type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return entry_points().destroy_descriptor(descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  return entry_points().set_attribute(descriptor, name, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements) {
  return entry_points().get_attribute(descriptor, name, type, requested, count, elements);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return entry_points().finalize(descriptor);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  return entry_points().execute(handle, plan, pack);
}

// The headers compile a kernel for another operation than attention by NVRTC, which is never wanted
// here.
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*,
                               const char* const*) {
  return NVRTC_ERROR_INVALID_INPUT;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_INVALID_INPUT; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  return NVRTC_ERROR_INVALID_INPUT;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INVALID_INPUT; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INVALID_INPUT; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INVALID_INPUT; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INVALID_INPUT; }
