# pyright: strict
"""Where the threads of a forward wait for each other: a spin as long as it pays, then sleep.

A forward has dozens of such places, microseconds apart. On cores of one's own a thread that sleeps
there comes back too late. Where others have the cores, one that spins burns the time in which the
system would let whoever is waited for run, and then is held up itself when that one arrives: two
threads took twenty times as long as one. GNU's barrier spins for 300,000 turns, milliseconds,
whatever came of the last. Here a wait that ended in sleep halves the turns of those that follow,
and any other lengthens them a little.
"""

_MOST, _LEAST = 10_000, 1_000  # turns: half a millisecond, and fifty microseconds or so
_LONGER = 64  # a wait that ended in time adds one part in so many

# One team at a time waits here: that of the thread that runs the process's forwards.
# futex: 202 on x86-64, where alone there are compiled forwards; 128 and 129 wait and wake.
TEAM_BARRIER = f"""
    declare i32 @omp_get_num_threads()
    declare i64 @syscall(i64, ...)
    declare void @llvm.x86.sse2.pause()
    @arrived = internal global i32 0, align 64
    @round = internal global i32 0, align 64
    @sleepers = internal global i32 0, align 64
    @turns = internal global i32 {_MOST}, align 64

    define void @wait() {{
        %size = call i32 @omp_get_num_threads()
        %own = load atomic i32, ptr @round acquire, align 4
        %before = atomicrmw add ptr @arrived, i32 1 acq_rel
        %count = add i32 %before, 1
        %is_last = icmp eq i32 %count, %size
        br i1 %is_last, label %open, label %begin

    open:
        store atomic i32 0, ptr @arrived monotonic, align 4
        %old = atomicrmw add ptr @round, i32 1 seq_cst
        %sleeping = load atomic i32, ptr @sleepers seq_cst, align 4
        %has_sleepers = icmp ne i32 %sleeping, 0
        br i1 %has_sleepers, label %wake, label %done

    wake:
        %woken = call i64 (i64, ...) @syscall(i64 202, ptr @round, i32 129, i32 2147483647,
                                              ptr null, ptr null, i32 0)
        br label %done

    begin:
        %most = load atomic i32, ptr @turns monotonic, align 4
        br label %spin

    spin:
        %turn = phi i32 [0, %begin], [%next, %again]
        %seen = load atomic i32, ptr @round acquire, align 4
        %is_open = icmp ne i32 %seen, %own
        br i1 %is_open, label %lengthen, label %look

    look:
        %next = add i32 %turn, 1
        %is_over = icmp sge i32 %next, %most
        br i1 %is_over, label %shorten, label %again

    again:
        call void @llvm.x86.sse2.pause()
        br label %spin

    lengthen:
        %part = sdiv i32 %most, {_LONGER}
        %more = add i32 %part, 1
        %longer = add i32 %most, %more
        %is_long = icmp sgt i32 %longer, {_MOST}
        %later = select i1 %is_long, i32 {_MOST}, i32 %longer
        store atomic i32 %later, ptr @turns monotonic, align 4
        br label %done

    shorten:
        %half = sdiv i32 %most, 2
        %is_short = icmp slt i32 %half, {_LEAST}
        %fewer = select i1 %is_short, i32 {_LEAST}, i32 %half
        store atomic i32 %fewer, ptr @turns monotonic, align 4
        %others = atomicrmw add ptr @sleepers, i32 1 seq_cst
        br label %sleep

    sleep:
        %slept = call i64 (i64, ...) @syscall(i64 202, ptr @round, i32 128, i32 %own,
                                              ptr null, ptr null, i32 0)
        %now = load atomic i32, ptr @round seq_cst, align 4
        %is_awake = icmp ne i32 %now, %own
        br i1 %is_awake, label %leave, label %sleep

    leave:
        %left = atomicrmw sub ptr @sleepers, i32 1 seq_cst
        br label %done

    done:
        ret void
    }}
"""
