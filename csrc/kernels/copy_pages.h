// Gather (store) and scatter (load) of pages by a few CTAs.
#pragma once
#include "base/page_copy.h"
#include "base/status.h"

namespace kvo {

// Loads the kernels now, on the current device: the first launch would do it, perhaps beside a model's graph capture.
Status load_copy_pages();

// On the current device. Ids and addresses travel as kernel arguments: nothing has to stay alive after the call.
Status launch_copy_pages(StreamHandle stream, const PageCopy& copy);

}  // namespace kvo
