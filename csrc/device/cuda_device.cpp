#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>

#include "cuda/batch_copy.h"
#include "cuda/call_guard.h"
#include "cuda/check.h"
#include "device/device.h"
#include "device/pci_link.h"
#include "kernels/copy_pages.h"

namespace kvo {

namespace {

using cuda::CallGuard;

class CudaEvent : public Event {
 public:
  CudaEvent(int ordinal, cudaEvent_t event) : ordinal_(ordinal), event_(event) {}
  ~CudaEvent() override {
    CallGuard guard(ordinal_);
    (void)cudaEventDestroy(event_);
    (void)cudaGetLastError();
  }
  cudaEvent_t get() const { return event_; }

 private:
  int ordinal_;
  cudaEvent_t event_;
};

inline cudaEvent_t raw(const Event& event) { return static_cast<const CudaEvent&>(event).get(); }

class CudaStream : public Stream {
 public:
  CudaStream(int ordinal, cudaStream_t stream) : ordinal_(ordinal), stream_(stream) {}
  ~CudaStream() override {
    CallGuard guard(ordinal_);
    (void)cudaStreamDestroy(stream_);  // returns at once; what is queued still runs
    (void)cudaGetLastError();
  }
  Status wait(const Event& event) override {
    KVO_CUDA_TRY(cudaStreamWaitEvent(stream_, raw(event), 0));
    return {};
  }
  Status record(Event& event) override {
    KVO_CUDA_TRY(cudaEventRecord(raw(event), stream_));
    return {};
  }
  Status copy(std::span<const CopySpan> spans, Direction direction) override {
    return cuda::copy_spans(spans, direction, stream_);
  }
  Status copy_pages(const PageCopy& copy) override {
    return launch_copy_pages(reinterpret_cast<StreamHandle>(stream_), copy);
  }

 private:
  int ordinal_;
  cudaStream_t stream_;
};

class CudaMemory : public DeviceMemory {
 public:
  CudaMemory(int ordinal, void* address) : ordinal_(ordinal), address_(static_cast<std::byte*>(address)) {}
  ~CudaMemory() override {
    CallGuard guard(ordinal_);
    (void)cudaFree(address_);
    (void)cudaGetLastError();
  }
  std::byte* address() const override { return address_; }

 private:
  int ordinal_;
  std::byte* address_;
};

Status refuse_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error != cudaSuccess && error != cudaErrorStreamCaptureImplicit)
    return cuda::to_status(error, "the caller's stream: cudaStreamIsCapturing");
  (void)cudaGetLastError();
  if (error == cudaSuccess && status == cudaStreamCaptureStatusNone) return {};
  return Status(
      Code::invalid,
      "the caller's stream is being captured into a CUDA graph: store, load and before() work on streams that "
      "are not captured; submit before or after the capture");
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {}
  std::string name() const override { return "cuda:" + std::to_string(ordinal_); }
  bool is_cuda() const override { return true; }
  int numa_node() const override { return read_numa_node(pci_folder()); }
  std::string identity() const override;
  double link_gb_per_s() const override { return read_pci_link(pci_folder()).gb_per_s(); }

  Result<std::unique_ptr<Event>> make_event(bool timed) override {
    CallGuard guard(ordinal_);
    cudaEvent_t event;
    KVO_CUDA_TRY(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
    return std::unique_ptr<Event>(std::make_unique<CudaEvent>(ordinal_, event));
  }
  Result<std::unique_ptr<DeviceMemory>> allocate(std::int64_t bytes) override {
    CallGuard guard(ordinal_);
    void* address;
    KVO_CUDA_TRY(cudaMalloc(&address, bytes));
    return std::unique_ptr<DeviceMemory>(std::make_unique<CudaMemory>(ordinal_, address));
  }
  std::int64_t free_bytes() override {
    CallGuard guard(ordinal_);
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) (void)cudaGetLastError();
    return static_cast<std::int64_t>(free);
  }
  Result<std::unique_ptr<Stream>> make_stream(Urgency urgency) override {
    CallGuard guard(ordinal_);
    KVO_TRY(load_copy_pages());
    int least = 0, greatest = 0;
    if (urgency == Urgency::high) KVO_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream;
    KVO_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    return std::unique_ptr<Stream>(std::make_unique<CudaStream>(ordinal_, stream));
  }
  Status record(Event& event, StreamHandle caller) override {
    CallGuard guard(ordinal_);
    auto stream = reinterpret_cast<cudaStream_t>(caller);
    KVO_TRY(refuse_capture(stream));
    KVO_CUDA_TRY(cudaEventRecord(raw(event), stream));
    return {};
  }
  Status wait(StreamHandle caller, const Event& event, Deadline) override {
    CallGuard guard(ordinal_);
    auto stream = reinterpret_cast<cudaStream_t>(caller);
    KVO_TRY(refuse_capture(stream));
    KVO_CUDA_TRY(cudaStreamWaitEvent(stream, raw(event), 0));
    return {};
  }
  EventState query(const Event& event) override {
    CallGuard guard(ordinal_);
    cudaError_t error = cudaEventQuery(raw(event));
    if (error == cudaSuccess) return EventState::done;
    (void)cudaGetLastError();
    return error == cudaErrorNotReady ? EventState::pending : EventState::failed;
  }
  double seconds_between(const Event& start, const Event& end) override {
    float milliseconds = 0;
    CallGuard guard(ordinal_);
    if (cudaEventElapsedTime(&milliseconds, raw(start), raw(end)) != cudaSuccess) (void)cudaGetLastError();
    return milliseconds * 1e-3;
  }
  Status pin(std::byte* address, std::int64_t bytes) override {
    CallGuard guard(ordinal_);
    KVO_CUDA_TRY(cudaHostRegister(address, bytes, cudaHostRegisterPortable));
    return {};
  }
  Status unpin(std::byte* address) override {
    CallGuard guard(ordinal_);
    KVO_CUDA_TRY(cudaHostUnregister(address));
    return {};
  }
  Status enter_thread() override {
    KVO_CUDA_TRY(cudaSetDevice(ordinal_));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    KVO_CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&mode));
    return {};
  }

 private:
  std::string pci_folder() const;

  int ordinal_;
};

std::string CudaDevice::pci_folder() const {
  CallGuard guard(ordinal_);
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, ordinal_) != cudaSuccess) (void)cudaGetLastError();
  std::string name = bus_id;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return "/sys/bus/pci/devices/" + name + "/";
}

std::string CudaDevice::identity() const {
  cudaDeviceProp properties{};
  int driver = 0;
  if (cudaGetDeviceProperties(&properties, ordinal_) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess)
    (void)cudaGetLastError();
  return std::string(properties.name) + ", driver " + std::to_string(driver) + ", " +
         read_pci_link(pci_folder()).text();
}

}  // namespace

Result<std::shared_ptr<Device>> make_cuda_device(int ordinal) {
  int count = 0;
  KVO_CUDA_TRY(cudaGetDeviceCount(&count));
  if (ordinal < 0 || ordinal >= count)
    return Status(Code::invalid, "device cuda:" + std::to_string(ordinal) + ": this machine has " +
                                     std::to_string(count) + " CUDA device(s), numbered from 0");
  return std::shared_ptr<Device>(std::make_shared<CudaDevice>(ordinal));
}

}  // namespace kvo
