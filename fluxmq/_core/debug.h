/* What only a debug build does (FLUXMQ_DEBUG=1, see setup.py): checks of invariants, and counts of live objects. In any
   other build neither costs anything, not even the evaluation of what is checked. */
#ifndef FLUXMQ_CORE_DEBUG_H
#define FLUXMQ_CORE_DEBUG_H

#ifdef FLUXMQ_DEBUG
#include <assert.h>
#define FLUXMQ_DEBUG_BUILD 1
#define fluxmq_check(condition) assert(condition)
#define fluxmq_count(counter, by) ((counter) += (by))
#else
#define FLUXMQ_DEBUG_BUILD 0
#define fluxmq_check(condition) ((void)0)
#define fluxmq_count(counter, by) ((void)0)
#endif

#endif
