// From tensors to pages: what is contiguous, and what is refused.
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <queue>
#include <sstream>
#include <tuple>
#include <utility>

#include "layout/geometry.h"

namespace kvo {
namespace {

constexpr std::int64_t kMaxPages = 65536;  // per tensor; more means that a dimension was misunderstood
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

std::string list_of(const std::vector<std::int64_t>& values) {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size(); ++i) text << (i == 0 ? "(" : ", ") << values[i];
  text << (values.empty() ? "()" : ")");
  return text.str();
}

Status refuse(const TensorView& tensor, const std::string& why) {
  std::ostringstream text;
  text << "shape " << list_of(tensor.shape) << ", strides " << list_of(tensor.strides) << " bytes, items of "
       << tensor.item_bytes << " bytes, block_dim " << tensor.block_dim << ": " << why;
  return {Code::invalid, text.str()};
}

struct Dim {
  std::int64_t size, stride;
  bool is_block;
};

Status check_shape(const TensorView& tensor) {
  const auto rank = static_cast<int>(tensor.shape.size());
  if (tensor.strides.size() != tensor.shape.size()) return refuse(tensor, "shape and strides differ in length");
  if (tensor.block_dim < 0 || tensor.block_dim >= rank) {
    return refuse(tensor, "block_dim must be 0 to " + std::to_string(rank - 1) + ", the dimension that counts blocks");
  }
  if (tensor.item_bytes < 1) return refuse(tensor, "items must have at least 1 byte");
  if (tensor.address == 0) return refuse(tensor, "the address is 0: the tensor has no memory");
  for (int i = 0; i < rank; ++i) {
    if (tensor.shape[i] < 1) return refuse(tensor, "dimension " + std::to_string(i) + " is empty");
  }
  for (int i = 0; i < rank; ++i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] < 1) {
      return refuse(tensor, "dimension " + std::to_string(i) +
                                " has a zero or negative stride: hand over the tensor it is a view of");
    }
  }
  return {};
}

// Dimensions of more than one entry, smallest stride first. Nested ones cannot overlap: each steps over all smaller
// ones.
Result<std::vector<Dim>> nested_dims(const TensorView& tensor) {
  std::vector<Dim> dims;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == 1) continue;
    dims.push_back({tensor.shape[i], tensor.strides[i], static_cast<int>(i) == tensor.block_dim});
  }
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  std::int64_t extent = tensor.item_bytes;
  for (const Dim& dim : dims) {
    if (dim.stride < extent) {
      return refuse(tensor, (dim.is_block ? "blocks overlap: a block stride of " : "entries overlap: a stride of ") +
                                std::to_string(dim.stride) + " bytes steps into " + std::to_string(extent) +
                                " bytes that are in use; check strides and block_dim");
    }
    std::int64_t steps = 0;
    if (__builtin_mul_overflow(dim.size - 1, dim.stride, &steps) || __builtin_add_overflow(extent, steps, &extent)) {
      return refuse(tensor, "it reaches over more than 2^63 bytes");
    }
  }
  if (tensor.address > static_cast<std::uintptr_t>(kMaxInt64 - extent)) {
    return refuse(tensor, "it ends beyond the address 2^63");
  }
  return dims;
}

// A page run and where it stood in the caller's list.
struct Placed {
  PageRun run;
  std::size_t position;
};

Status refuse_overlap(const PageRun& a, const PageRun& b) {
  std::ostringstream text;
  text << "pages of one group overlap: " << a.bytes << " bytes at 0x" << std::hex << a.address << std::dec << " every "
       << a.block_stride << " bytes, and " << b.bytes << " bytes at 0x" << std::hex << b.address << std::dec
       << " every " << b.block_stride
       << " bytes; only identical views may be shared within a group: put the others into separate "
       << "groups, or hand over the whole tensor once";
  return {Code::invalid, text.str()};
}

// Sorted by address. Looks at every block, not only at the first: a page is in the way of those that begin before its
// last block ends, and among these, which all have one stride, only neighbours modulo the stride can overlap. So pages
// that pass and touch have the same stride and fit into it together. A single block's stride is 0: all overlaps count.
Status check_disjoint(const std::vector<Placed>& sorted, std::int64_t num_blocks) {
  std::map<std::uintptr_t, const PageRun*> open;  // by address modulo the stride
  std::priority_queue<std::pair<std::uintptr_t, std::uintptr_t>, std::vector<std::pair<std::uintptr_t, std::uintptr_t>>,
                      std::greater<>>
      ends;  // end of the last block, key in `open`
  for (const auto& [page, position] : sorted) {
    for (; !ends.empty() && ends.top().first <= page.address; ends.pop()) open.erase(ends.top().second);
    const auto stride = static_cast<std::uintptr_t>(std::max<std::int64_t>(page.block_stride, 1));
    const std::uintptr_t key = page.address % stride;
    if (!open.empty()) {
      const auto next = open.lower_bound(key);
      const PageRun& above = *(next == open.end() ? open.begin() : next)->second;
      const PageRun& below = *std::prev(next == open.begin() ? open.end() : next)->second;
      for (const PageRun* other : {&above, &below}) {
        const std::uintptr_t gap = (page.address - other->address) % stride;
        if (other->block_stride != page.block_stride || gap < static_cast<std::uintptr_t>(other->bytes) ||
            stride - gap < static_cast<std::uintptr_t>(page.bytes)) {
          return refuse_overlap(*other, page);
        }
      }
    }
    open.emplace(key, &page);
    const std::int64_t reach = (num_blocks - 1) * page.block_stride + page.bytes;
    ends.emplace(page.address + static_cast<std::uintptr_t>(reach), key);
  }
  return {};
}

Status check_runs(const std::vector<PageRun>& pages, std::int64_t num_blocks) {
  if (num_blocks < 1) {
    return {Code::invalid, "num_blocks is " + std::to_string(num_blocks) + "; it must be at least 1"};
  }
  for (const PageRun& page : pages) {
    std::int64_t reach = 0;
    if (page.bytes < 1 || (num_blocks > 1 && page.block_stride < page.bytes)) {
      return {Code::invalid, "a page of " + std::to_string(page.bytes) + " bytes with a block stride of " +
                                 std::to_string(page.block_stride) + ": it must have 1 byte to one block stride"};
    }
    if (num_blocks > 1 && (__builtin_mul_overflow(num_blocks - 1, page.block_stride, &reach) ||
                           __builtin_add_overflow(reach, page.bytes, &reach))) {
      return {Code::invalid, std::to_string(num_blocks) + " blocks with a stride of " +
                                 std::to_string(page.block_stride) + " bytes reach over more than 2^63 bytes"};
    }
  }
  return {};
}

}  // namespace

Result<std::vector<PageRun>> pages_of(const TensorView& tensor) {
  KVO_TRY(check_shape(tensor));
  auto dims = nested_dims(tensor);
  if (!dims.ok()) return dims.status();
  std::int64_t run = tensor.item_bytes, count = 1;
  std::vector<Dim> outer;
  for (const Dim& dim : *dims) {
    if (dim.is_block) continue;
    if (outer.empty() && dim.stride == run) {
      run *= dim.size;
    } else if (outer.push_back(dim); __builtin_mul_overflow(count, dim.size, &count) || count > kMaxPages) {
      return refuse(tensor, "a block is made of more than " + std::to_string(kMaxPages) + " pieces, the first of " +
                                std::to_string(run) + " bytes: its inner dimensions must be contiguous");
    }
  }
  const bool one_block = tensor.shape[tensor.block_dim] == 1;
  std::vector<PageRun> pages = {{tensor.address, one_block ? 0 : tensor.strides[tensor.block_dim], run}};
  pages.reserve(static_cast<std::size_t>(count));
  // The largest stride first, so that the list stays in order of addresses.
  for (auto dim = outer.rbegin(); dim != outer.rend(); ++dim) {
    std::vector<PageRun> expanded;
    expanded.reserve(static_cast<std::size_t>(count));
    for (const PageRun& page : pages) {
      for (std::int64_t i = 0; i < dim->size; ++i) {
        expanded.push_back({page.address + static_cast<std::uintptr_t>(i * dim->stride), page.block_stride, run});
      }
    }
    pages = std::move(expanded);
  }
  return pages;
}

Result<std::vector<PageRun>> merge_pages(std::vector<PageRun> pages, std::int64_t num_blocks) {
  KVO_TRY(check_runs(pages, num_blocks));
  std::vector<Placed> sorted;
  for (PageRun& page : pages) {
    if (num_blocks == 1) page.block_stride = 0;  // it has no meaning then, and must not keep pages apart
    sorted.push_back({page, sorted.size()});
  }
  const auto key = [](const Placed& p) { return std::tie(p.run.address, p.run.block_stride, p.run.bytes, p.position); };
  std::sort(sorted.begin(), sorted.end(), [&](const Placed& a, const Placed& b) { return key(a) < key(b); });
  const auto same = [](const Placed& a, const Placed& b) { return a.run == b.run; };
  sorted.erase(std::unique(sorted.begin(), sorted.end(), same), sorted.end());
  KVO_TRY(check_disjoint(sorted, num_blocks));

  std::vector<Placed> joined;
  for (const Placed& page : sorted) {
    if (!joined.empty()) {
      auto& [last, position] = joined.back();
      if (last.address + static_cast<std::uintptr_t>(last.bytes) == page.run.address) {
        last.bytes += page.run.bytes;
        position = std::min(position, page.position);
        continue;
      }
    }
    joined.push_back(page);
  }
  // The caller's order, not that of addresses: it is the same in every process.
  std::sort(joined.begin(), joined.end(), [](const Placed& a, const Placed& b) { return a.position < b.position; });
  std::vector<PageRun> merged;
  for (const Placed& page : joined) merged.push_back(page.run);
  return merged;
}

}  // namespace kvo
