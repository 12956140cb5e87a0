// One native call and the memory that its arguments live in.
//
// Every task of the CPU backend, a compiled Warp kernel as well as a memset, is a C function with up
// to eight word-sized arguments. Arguments that point to structures (launch bounds, kernel arguments,
// array descriptors) point into `blob`, which the call owns, so that a task outlives the Python
// objects it was made from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ks {

// The floating point control word (denormal flushing, rounding) that a task must run under.
inline uint32_t read_float_mode() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fU;
#elif defined(__aarch64__)
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return static_cast<uint32_t>(mode);
#else
  return 0;
#endif
}

inline void write_float_mode(uint32_t mode) {
#if defined(__x86_64__)
  _mm_setcsr(mode);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(static_cast<uint64_t>(mode)));
#else
  (void)mode;
#endif
}

struct Call {
  static constexpr int kMaxArgs = 8;
  enum Check : uint8_t {
    kNone = 0,
    kReturnsBool = 1,  // false means that it failed
    kBlockError = 2,   // ask `take_block_error` afterwards, on the same thread
  };

  void* function = nullptr;
  const std::vector<void*>* per_lane = nullptr;  // one copy of the code per lane, or null
  std::array<int64_t, kMaxArgs> args{};
  uint8_t blob_args = 0;  // bit i: args[i] is an offset into blob
  uint8_t check = kNone;
  std::vector<std::max_align_t> blob;

  static constexpr int kMaxLanes = 64;
  static inline const char* (*take_block_error)() = nullptr;
  // Copies are per lane number, and two open windows may use the same number.
  static inline std::mutex lane_code[kMaxLanes];

  void reserve_blob(size_t bytes) {
    const size_t units = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
    if (blob.size() < units) blob.resize(units);
  }
  char* blob_data() { return reinterpret_cast<char*>(blob.data()); }

  // Returns an error message, empty when the call did its work.
  std::string run(int lane) {
    std::array<int64_t, kMaxArgs> a = args;
    for (int i = 0; i < kMaxArgs; ++i)
      if (blob_args >> i & 1) a[i] = reinterpret_cast<int64_t>(blob_data() + a[i]);
    std::unique_lock<std::mutex> own_code;
    if (per_lane != nullptr) own_code = std::unique_lock<std::mutex>(lane_code[lane]);
    void* code = per_lane != nullptr ? (*per_lane)[lane] : function;
    if ((check & kBlockError) != 0 && take_block_error != nullptr) take_block_error();
    using Word = int64_t;
    using Function = Word (*)(Word, Word, Word, Word, Word, Word, Word, Word);
    const Word result = reinterpret_cast<Function>(code)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    if ((check & kReturnsBool) != 0 && (result & 0xff) == 0) return "the native call failed";
    if ((check & kBlockError) != 0 && take_block_error != nullptr)
      if (const char* message = take_block_error()) return message;
    return {};
  }
};

}  // namespace ks
