/* Checks of invariants, of two kinds.

   fluxmq_ensure: in every build. One comparison of what is at hand already, in front of what would corrupt memory or
   the journal if it did not hold: the process says where it stood, and ends (a restart recovers what was acknowledged).

   fluxmq_check: in a debug build only (FLUXMQ_DEBUG=1, see setup.py); elsewhere not even what is checked is evaluated.

   And counts of live objects, in every build: one addition beside each allocation, so that every run of the tests can
   ask what was left behind. */
#ifndef FLUXMQ_CORE_DEBUG_H
#define FLUXMQ_CORE_DEBUG_H

#include <stdio.h>
#include <stdlib.h>

static inline void fluxmq_broken(const char *condition, const char *file, int line)
{
    fprintf(stderr, "fluxmq: an invariant does not hold: %s (%s:%d)\n", condition, file, line);
    abort();
}

#define fluxmq_ensure(condition) \
    (__builtin_expect(!(condition), 0) ? fluxmq_broken(#condition, __FILE__, __LINE__) : (void)0)

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
