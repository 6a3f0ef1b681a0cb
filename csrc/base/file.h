// The few file operations that decide what survives a crash. Tests put a disk that loses power behind them.
//
// Files are 0600, symbolic links are not followed. All calls may be made from any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace kvo {

class File {
 public:
  virtual ~File() = default;
  virtual Result<std::int64_t> size() = 0;
  // The bytes read: fewer than asked for where the file ends, or where the next cannot be read.
  virtual Result<std::int64_t> read(std::int64_t offset, void* into, std::int64_t bytes) = 0;
  virtual Status write(std::int64_t offset, const void* from, std::int64_t bytes) = 0;  // all or a failure
  virtual Status sync() = 0;  // what was written is on the medium, and so is the size
};

enum class OpenMode { existing, empty, read };  // empty: made, or emptied; read: existing, and left as it is

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) = 0;  // null: not there
  virtual Status rename(const std::string& from, const std::string& to) = 0;               // replaces `to`
  virtual Status remove(const std::string& path) = 0;                                      // fine if it is not there
  virtual Status sync_directory(
      const std::string& path) = 0;  // creations, renames and removals in it are on the medium
};

FileSystem& real_files();

// "cannot write /nvme/kv/x: No space left on device"
Status file_error(const char* verb, const std::string& path, int error);

}  // namespace kvo
