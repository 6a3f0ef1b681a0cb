#include "base/fault.h"

#include <map>
#include <mutex>
#include <string>

namespace kvo::fault {
namespace {

struct Armed {
  long skip, count;
};

std::mutex mutex;
std::map<std::string, Armed, std::less<>> points;  // guarded by `mutex`; armed_count is its size

void publish_size() { armed_count.store(static_cast<int>(points.size()), std::memory_order_relaxed); }

}  // namespace

void arm(std::string_view point, long skip, long count) {
  std::lock_guard lock(mutex);
  points.erase(std::string(point));
  if (count > 0) points.emplace(point, Armed{skip, count});
  publish_size();
}

void disarm_all() {
  std::lock_guard lock(mutex);
  points.clear();
  publish_size();
}

bool fires_slow(std::string_view point) {
  std::lock_guard lock(mutex);
  const auto found = points.find(point);
  if (found == points.end()) return false;
  if (found->second.skip > 0) {
    --found->second.skip;
    return false;
  }
  if (--found->second.count == 0) {
    points.erase(found);
    publish_size();
  }
  return true;
}

}  // namespace kvo::fault
