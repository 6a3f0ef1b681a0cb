#include "device/pci_link.h"

#include <fstream>
#include <sstream>

namespace kvo {

namespace {

template <class Number>
Number read(const std::string& path, Number otherwise) {
  std::ifstream file(path);
  Number number = otherwise;
  file >> number;  // "32.0 GT/s PCIe": what follows the number is not read
  return file.fail() ? otherwise : number;
}

}  // namespace

double PciLink::gb_per_s() const {
  const double coding = giga_transfers_per_s > 5 ? 128.0 / 130 : 0.8;
  return giga_transfers_per_s * lanes / 8 * coding;
}

std::string PciLink::text() const {
  if (giga_transfers_per_s <= 0 || lanes <= 0) return "unknown link";
  std::ostringstream text;
  text << "PCIe " << giga_transfers_per_s << " GT/s x" << lanes;
  return text.str();
}

PciLink read_pci_link(const std::string& folder) {
  PciLink link{read(folder + "max_link_speed", 0.0), read(folder + "max_link_width", 0)};
  if (link.giga_transfers_per_s < 0 || link.lanes < 0 || link.lanes > 32)
    return {};  // 255: "unknown" in some virtual machines
  return link;
}

int read_numa_node(const std::string& folder) { return read(folder + "numa_node", -1); }

}  // namespace kvo
