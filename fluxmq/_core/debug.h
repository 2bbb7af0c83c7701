/* Checks of invariants, which cost nothing but in a debug build (FLUXMQ_DEBUG=1, see setup.py), not even the evaluation
   of what is checked; and counts of live objects, in every build: one addition beside each allocation, so that every
   run of the tests can ask what was left behind. */
#ifndef FLUXMQ_CORE_DEBUG_H
#define FLUXMQ_CORE_DEBUG_H

#ifdef FLUXMQ_DEBUG
#include <assert.h>
#define FLUXMQ_DEBUG_BUILD 1
#define fluxmq_check(condition) assert(condition)
#else
#define FLUXMQ_DEBUG_BUILD 0
#define fluxmq_check(condition) ((void)0)
#endif

#define fluxmq_count(counter, by) ((counter) += (by))

#endif
