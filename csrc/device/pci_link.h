// What sysfs says of a PCI device.
#pragma once
#include <string>

namespace kvo {

struct PciLink {
  double giga_transfers_per_s = 0;  // a lane's: 16 for PCIe 4, 32 for PCIe 5; 0: unknown
  int lanes = 0;

  double gb_per_s() const;   // one way, after line coding, before packet headers
  std::string text() const;  // "PCIe 32 GT/s x16", "unknown link"
};

// The most the device can do: an idle GPU runs its link slowly. `folder` ends with a slash.
PciLink read_pci_link(const std::string& folder);
int read_numa_node(const std::string& folder);  // -1: unknown or one node

}  // namespace kvo
