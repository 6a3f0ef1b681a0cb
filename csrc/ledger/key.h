// A key's bytes. Those of vLLM (a SHA-256 and a group) fit in the record itself: at millions of keys, a heap block and
// a cache miss for each would be most of what the ledger costs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace kvo {

inline constexpr std::size_t kMostDiskKeyBytes = 256;  // a record on disk has no room for more

class Key {
 public:
  Key() = default;
  explicit Key(std::string_view bytes) { *this = bytes; }
  Key(const Key&) = delete;
  ~Key() { clear(); }

  Key& operator=(std::string_view bytes) {
    clear();
    char* target = inline_;
    if (bytes.size() > sizeof inline_) {
      target = new char[bytes.size()];
      std::memcpy(inline_, &target, sizeof target);
    }
    std::memcpy(target, bytes.data(), bytes.size());
    size_ = static_cast<std::uint32_t>(bytes.size());
    return *this;
  }
  std::string_view view() const { return {size_ > sizeof inline_ ? heap() : inline_, size_}; }
  void clear() {
    if (size_ > sizeof inline_) delete[] heap();
    size_ = 0;
  }

 private:
  char* heap() const {
    char* bytes;
    std::memcpy(&bytes, inline_, sizeof bytes);
    return bytes;
  }

  std::uint32_t size_ = 0;
  char inline_[36];  // or the address of more
};

}  // namespace kvo
