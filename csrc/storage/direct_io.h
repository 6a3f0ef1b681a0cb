// What a directory's file system can do, found out by doing it.
#pragma once
#include <string>

#include "base/status.h"

namespace kvo {

// Empty: reads and writes of whole 4 KiB blocks go past the page cache. Else why they cannot. Leaves no file behind.
std::string why_not_direct(int directory);

bool is_network_file_system(long type);  // statfs' f_type
Result<bool> on_network(int directory);

}  // namespace kvo
