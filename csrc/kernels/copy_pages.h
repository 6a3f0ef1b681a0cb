// Gather (store) and scatter (load) of pages by a few CTAs.
#pragma once
#include "base/page_copy.h"
#include "base/status.h"

namespace kvo {

// On the current device. Ids and addresses travel as kernel arguments: nothing has to stay alive after the call.
Status launch_copy_pages(StreamHandle stream, const PageCopy& copy);

}  // namespace kvo
