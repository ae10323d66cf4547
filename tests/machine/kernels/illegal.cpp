// The kernel of tests/gpu/illegal_address.ptx, which breaks its context.
#include "../entries.h"
#include "../machine.h"

static void illegal_address(unsigned long long) { __trap(); }

ENTRY(illegal_address)
