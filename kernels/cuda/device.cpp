// SPDX-License-Identifier: MIT
#include "kernels/cuda/device.hpp"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "kernels/backend.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {

namespace {

constexpr const char* kRemedy = "look at nvidia-smi, or use --device cpu";

}  // namespace

OutOfMemory::OutOfMemory(std::string where)
    : BackendUnavailable("the GPU is out of memory", std::move(where),
                         "free memory on the GPU (nvidia-smi shows who holds it), or use --device cpu") {}

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // or the next call would report it again
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(call);
  throw BackendUnavailable(std::string("CUDA: ") + cudaGetErrorString(status), call, kRemedy);
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemory(call);
  throw BackendUnavailable(std::string("cuBLAS: ") + cublasGetStatusString(status), call, kRemedy);
}

void check(cusolverStatus_t status, const char* call) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  if (status == CUSOLVER_STATUS_ALLOC_FAILED) throw OutOfMemory(call);
  throw BackendUnavailable("cuSOLVER: status " + std::to_string(static_cast<int>(status)), call, kRemedy);
}

SharedBlas::Turn::Turn(SharedBlas& shared, cudaStream_t stream, void* workspace, std::size_t bytes)
    : shared_(shared), lock_(shared.mutex_) {
  if (shared_.handle_ == nullptr) {
    cublasHandle_t handle = nullptr;
    OSCAR_CUDA_TRY(cublasCreate(&handle));
    shared_.handle_ = handle;
  }
  OSCAR_CUDA_TRY(cublasSetStream(shared_.handle_, stream));  // first, since it takes the workspace away
  OSCAR_CUDA_TRY(cublasSetWorkspace(shared_.handle_, workspace, bytes));
}

SharedBlas::~SharedBlas() {
  if (handle_ != nullptr) cublasDestroy(handle_);
}

namespace {

constexpr std::size_t kMebi = std::size_t{1} << 20;
constexpr std::size_t kChunkBytes = 32 * kMebi;
constexpr std::size_t kSmallestChunkBytes = kMebi;

std::string device_name(int ordinal) { return "cuda:" + std::to_string(ordinal); }

void check_device(int ordinal) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) (void)cudaGetLastError();  // or the next call would report it again
  if (status == cudaErrorInsufficientDriver) {
    throw BackendUnavailable("the NVIDIA driver is too old for CUDA " + std::to_string(CUDART_VERSION / 1000) + "." +
                                 std::to_string(CUDART_VERSION % 1000 / 10),
                             device_name(ordinal), "update the driver, or use --device cpu");
  }
  if (status == cudaErrorNoDevice) {
    throw NoGpu("this machine has no NVIDIA GPU", device_name(ordinal), "use --device cpu, or look at nvidia-smi");
  }
  if (status != cudaSuccess) {
    throw BackendUnavailable(std::string("the NVIDIA driver gives no GPU: ") + cudaGetErrorString(status),
                             device_name(ordinal), "use --device cpu, or look at nvidia-smi");
  }
  if (ordinal < count) return;
  throw BackendUnavailable("no such GPU; this machine has " + std::to_string(count), device_name(ordinal),
                           "choose a smaller number, or look at CUDA_VISIBLE_DEVICES");
}

int attribute(int ordinal, cudaDeviceAttr which) {
  int value = 0;
  OSCAR_CUDA_TRY(cudaDeviceGetAttribute(&value, which, ordinal));
  return value;
}

void check_code(int ordinal) {
  if (has_code_for_this_gpu()) return;
  throw BackendUnavailable("this build has CUDA code for " OSCAR_CUDA_ARCHITECTURES
                           " only, and this GPU's compute capability is " +
                               std::to_string(attribute(ordinal, cudaDevAttrComputeCapabilityMajor)) + "." +
                               std::to_string(attribute(ordinal, cudaDevAttrComputeCapabilityMinor)),
                           device_name(ordinal), "use --device cpu, or build with -DCMAKE_CUDA_ARCHITECTURES=native");
}

/// A pool that keeps what it once had: memory comes and goes with every verb.
cudaMemPool_t make_pool(int ordinal) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;  // memory of the GPU
  properties.location = {cudaMemLocationTypeDevice, ordinal};
  cudaMemPool_t pool = nullptr;
  OSCAR_CUDA_TRY(cudaMemPoolCreate(&pool, &properties));
  std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
  OSCAR_CUDA_TRY(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything));
  return pool;
}

/// H100 and A100 have fp64 tensor cores and half as many fp64 units as fp32 ones; other GPUs 1/32 or 1/64 as many.
bool has_fast_f64(int ordinal) {
  const char* given = std::getenv("OSCAR_CUDA_PRODUCTS");
  const std::string_view products = given == nullptr ? "" : given;
  if (products == "fp32" || products == "fp64") return products == "fp64";
  if (given != nullptr) throw UsageError("unknown products", "OSCAR_CUDA_PRODUCTS", "set fp32 or fp64, or unset it");
  return attribute(ordinal, cudaDevAttrSingleToDoublePrecisionPerfRatio) <= 4;
}

/// From OSCAR_CUDA_MEMORY_LIMIT, in MiB.
std::size_t memory_limit() {
  const char* text = std::getenv("OSCAR_CUDA_MEMORY_LIMIT");
  if (text == nullptr) return std::numeric_limits<std::size_t>::max();
  const int mebibytes = parse_number(text).value_or(0);
  if (mebibytes > 0) return static_cast<std::size_t>(mebibytes) * kMebi;
  throw UsageError("not a number of MiB above 0", "OSCAR_CUDA_MEMORY_LIMIT", "set one, or unset it");
}

}  // namespace

Device::Device(int ordinal, Status& status)
    : ordinal_(ordinal), status_(status), memory_limit_(memory_limit()), chunk_bytes_(kChunkBytes) {
  check_device(ordinal);
  activate();
  check_code(ordinal);
  multiplies_in_f64_ = has_fast_f64(ordinal);
  pool_ = make_pool(ordinal);
}

Device::~Device() { (void)cudaMemPoolDestroy(pool_); }

void Device::activate() const { OSCAR_CUDA_TRY(cudaSetDevice(ordinal_)); }

std::string Device::description() const {
  cudaDeviceProp properties{};
  OSCAR_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal_));
  return device_name(ordinal_) + ", " + properties.name + ", " + std::to_string(properties.totalGlobalMem >> 30) +
         " GiB";
}

void* Device::allocate(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  const bool allowed = (allocated_ += bytes) <= memory_limit_;
  const cudaError_t status = allowed ? cudaMallocFromPoolAsync(&data, bytes, pool_, stream) : cudaErrorMemoryAllocation;
  if (status != cudaSuccess) allocated_ -= bytes;
  check(status, "cudaMallocFromPoolAsync");
  return data;
}

void Device::release(void* data, std::size_t bytes, cudaStream_t stream) noexcept {
  if (data == nullptr) return;
  (void)cudaSetDevice(ordinal_);  // whoever drops a buffer need not be in a verb
  (void)cudaFreeAsync(data, stream);
  allocated_ -= bytes;
}

void Device::work_in_smaller_chunks(std::size_t chunk_bytes, const OutOfMemory& error) {
  (void)cudaMemPoolTrimTo(pool_, 0);
  if (chunk_bytes <= kSmallestChunkBytes) throw OutOfMemory(error.where());
  if (!chunk_bytes_.compare_exchange_strong(chunk_bytes, chunk_bytes / 2)) return;
  status_.notice("GPU memory is short: working in chunks of " + std::to_string(chunk_bytes / 2 / kMebi) + " MiB");
}

void Device::tell_memory() const {
  (void)cudaSetDevice(ordinal_);  // whoever drops a backend need not be in a verb
  std::uint64_t most = 0, reserved = 0;
  std::size_t free = 0, total = 0;
  if (cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &most) != cudaSuccess ||
      cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemHigh, &reserved) != cudaSuccess ||
      cudaMemGetInfo(&free, &total) != cudaSuccess) {
    return;  // an error of the GPU, which a verb has thrown
  }
  status_.detail("GPU memory: at most " + std::to_string(most / kMebi) + " MiB in buffers, " +
                 std::to_string(reserved / kMebi) + " MiB in their pool; " + std::to_string((total - free) / kMebi) +
                 " MiB taken by all that runs there");
}

}  // namespace oscar::cuda
