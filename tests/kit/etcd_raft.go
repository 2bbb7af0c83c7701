// Replicas of one group in etcd/raft, driven step by step: the oracle of fluxmq/_core/raft. See kit/etcd_raft.py.
//
// A line on standard input is a step of one replica, and is answered by a line:
//
//	group REPLICAS ELECTION HEARTBEAT INFLIGHT BYTES MEMBERS      all anew, with empty logs
//	tick R COUNT | campaign R | propose R DATA… | change R MEMBERS | transfer R TO | restart R COMMIT |
//	compact R INDEX
//	deliver KIND FROM TO TERM INDEX LOG_TERM COMMIT HINT REFUSED FORCED ENTRIES
//
//	TAKEN|ROLE TERM VOTE LEADER COMMIT TRANSFEREE|MEMBERS|PROGRESS|LOG|MESSAGE|MESSAGE…
//
// MEMBERS: 1+2+3/4, voters and learners. ENTRIES: TERM:KIND:DATA,… or -, of kind n(othing), r(ecords) or m(embers). Of a
// COPY, INDEX and LOG_TERM are those of its last entry, and it has the MEMBERS then for ENTRIES, on the way here. LOG:
// INDEX.TERM;ENTRIES, of the last entry that was compacted and of those behind it; = if it is as before. PROGRESS of a
// leader: REPLICA:MATCH:ACTIVE,… of the others.
//
// Everything is on the disk, and what is committed is applied, before a step is answered. Nobody stands because of its
// own clock, which etcd/raft draws by chance: who does not lead counts the tick and does nothing else.
//
// Two rules of Ongaro's thesis that this version of etcd/raft leaves to its user, or has otherwise, are the driver's:
// members count from the entry on that changes them, and back when it is cut; and a leader that is no voter any more
// follows as soon as that is committed.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.etcd.io/etcd/raft"
	pb "go.etcd.io/etcd/raft/raftpb"
)

var roles = map[raft.StateType]string{raft.StateFollower: "FOLLOWER", raft.StatePreCandidate: "PRE_CANDIDATE",
	raft.StateCandidate: "CANDIDATE", raft.StateLeader: "LEADER"}

var kinds = map[string]pb.MessageType{"APPEND": pb.MsgApp, "APPENDED": pb.MsgAppResp, "HEARTBEAT": pb.MsgHeartbeat,
	"ALIVE": pb.MsgHeartbeatResp, "VOTE": pb.MsgVote, "VOTED": pb.MsgVoteResp, "PRE_VOTE": pb.MsgPreVote,
	"PRE_VOTED": pb.MsgPreVoteResp, "CAMPAIGN": pb.MsgTimeoutNow, "COPY": pb.MsgSnap}

var names = map[pb.MessageType]string{}

// What a candidate sends along whom the leader has asked to stand.
const forced = "CampaignTransfer"

// ---------------------------------------------------------------- members

type members struct {
	index            uint64 // of the entry, or of a copy
	text             string
	voters, learners []uint64
}

func numbers(text string) (found []uint64) {
	for _, word := range strings.FieldsFunc(text, func(c rune) bool { return c == '+' }) {
		found = append(found, number(word))
	}
	return found
}

func parseMembers(index uint64, text string) members {
	parts := strings.SplitN(text, "/", 2)
	return members{index, text, numbers(parts[0]), numbers(parts[1])}
}

func has(list []uint64, one uint64) bool {
	for _, other := range list {
		if other == one {
			return true
		}
	}
	return false
}

func (from members) state() pb.ConfState {
	return pb.ConfState{Voters: from.voters, Learners: from.learners}
}

// The change of one replica that leads from these members to those.
func (from members) changeTo(to members) pb.ConfChangeV2 {
	change := func(kind pb.ConfChangeType, one uint64) pb.ConfChangeV2 {
		return pb.ConfChangeV2{Changes: []pb.ConfChangeSingle{{Type: kind, NodeID: one}}}
	}
	for _, one := range to.voters {
		if !has(from.voters, one) {
			return change(pb.ConfChangeAddNode, one)
		}
	}
	for _, one := range to.learners {
		if !has(from.learners, one) {
			return change(pb.ConfChangeAddLearnerNode, one)
		}
	}
	for _, one := range append(append([]uint64{}, from.voters...), from.learners...) {
		if !has(to.voters, one) && !has(to.learners, one) {
			return change(pb.ConfChangeRemoveNode, one)
		}
	}
	panic("no change from " + from.text + " to " + to.text)
}

// ---------------------------------------------------------------- a replica

// Storage that knows the members of the newest entry.
type disk struct {
	*raft.MemoryStorage
	replica *replica
}

func (d disk) InitialState() (pb.HardState, pb.ConfState, error) {
	hard, _, err := d.MemoryStorage.InitialState()
	return hard, d.replica.newest().state(), err
}

type replica struct {
	number   uint64
	config   raft.Config
	node     *raft.RawNode
	disk     disk
	members  []members // those of the copy, and of each entry that changes them
	messages []pb.Message
	changed  bool // the log, in this step
}

func newReplica(number uint64, config raft.Config, first members) *replica {
	r := &replica{number: number, config: config, members: []members{first}}
	r.disk = disk{raft.NewMemoryStorage(), r}
	r.config.ID, r.config.Storage = number, r.disk
	r.start()
	return r
}

func (r *replica) newest() members { return r.members[len(r.members)-1] }

func (r *replica) hard() pb.HardState {
	hard, _, err := r.disk.InitialState()
	demand(err)
	return hard
}

func (r *replica) start() {
	r.config.Applied = r.hard().Commit
	node, err := raft.NewRawNode(&r.config)
	demand(err)
	r.node = node
}

func (r *replica) restart(commit uint64) {
	hard := r.hard()
	hard.Commit = commit
	demand(r.disk.SetHardState(hard))
	r.start()
}

func (r *replica) compact(index uint64) {
	for len(r.members) > 1 && r.members[1].index <= index {
		r.members = r.members[1:]
	}
	state := r.members[0].state()
	_, err := r.disk.CreateSnapshot(index, &state, nil)
	demand(err)
	demand(r.disk.Compact(index))
	r.changed = true
}

func (r *replica) install(copy pb.Snapshot) {
	meta := copy.Metadata
	demand(r.disk.ApplySnapshot(copy))
	r.members = []members{{meta.Index, "", meta.ConfState.Voters, meta.ConfState.Learners}}
	r.changed = true
}

func (r *replica) use(to members) {
	r.node.ApplyConfChange(r.newest().changeTo(to))
	r.members = append(r.members, to)
}

func (r *replica) write(entries []pb.Entry) {
	if len(entries) == 0 {
		return
	}
	r.changed = true
	last, err := r.disk.LastIndex()
	demand(err)
	first := entries[0].Index
	for first <= last && r.newest().index >= first { // they are cut
		former := r.members[len(r.members)-2]
		r.node.ApplyConfChange(r.newest().changeTo(former))
		r.members = r.members[:len(r.members)-1]
	}
	demand(r.disk.Append(entries))
	for _, entry := range entries {
		if entry.Type == pb.EntryConfChange && r.newest().index < entry.Index {
			r.use(parseMembers(entry.Index, membersOf(entry)))
		}
	}
}

func (r *replica) turn() {
	for r.node.HasReady() {
		ready := r.node.Ready()
		if !raft.IsEmptySnap(ready.Snapshot) {
			r.install(ready.Snapshot)
		}
		if !raft.IsEmptyHardState(ready.HardState) {
			demand(r.disk.SetHardState(ready.HardState))
		}
		r.messages = append(r.messages, ready.Messages...)
		r.write(ready.Entries)
		r.node.Advance(ready)
	}
	status, newest := r.node.BasicStatus(), r.newest()
	if status.RaftState == raft.StateLeader && !has(newest.voters, r.number) && newest.index <= status.Commit {
		r.start() // it follows, in the same term and with the same vote
		r.turn()
	}
}

// Changes the members if it leads. The new ones count first, unless they leave out the leader itself: etcd/raft takes
// no proposal of one that is no member.
func (r *replica) change(text string) error {
	last, err := r.disk.LastIndex()
	demand(err)
	to := parseMembers(last+1, text)
	if has(to.voters, r.number) {
		r.use(to)
	}
	return r.node.ProposeConfChange(pb.ConfChange{Type: pb.ConfChangeUpdateNode, NodeID: r.number, Context: []byte(text)})
}

// ---------------------------------------------------------------- texts

func number(text string) uint64 {
	value, err := strconv.ParseUint(text, 10, 64)
	demand(err)
	return value
}

func demand(err error) {
	if err != nil {
		panic(err)
	}
}

func membersOf(entry pb.Entry) string {
	var change pb.ConfChange
	demand(change.Unmarshal(entry.Data))
	return string(change.Context)
}

func entriesText(entries []pb.Entry) string {
	if len(entries) == 0 {
		return "-"
	}
	words := make([]string, len(entries))
	for i, entry := range entries {
		kind, data := "r", string(entry.Data)
		if entry.Type == pb.EntryConfChange {
			kind, data = "m", membersOf(entry)
		} else if len(entry.Data) == 0 {
			kind = "n"
		}
		words[i] = strconv.FormatUint(entry.Term, 10) + ":" + kind + ":" + data
	}
	return strings.Join(words, ",")
}

func parseEntries(text string, index uint64) (found []pb.Entry) {
	if text == "-" {
		return nil
	}
	for _, word := range strings.Split(text, ",") {
		parts := strings.SplitN(word, ":", 3)
		index++
		entry := pb.Entry{Term: number(parts[0]), Index: index}
		if parts[1] == "m" {
			change := pb.ConfChange{Type: pb.ConfChangeUpdateNode, Context: []byte(parts[2])}
			data, err := change.Marshal()
			demand(err)
			entry.Type, entry.Data = pb.EntryConfChange, data
		} else if parts[1] == "r" {
			entry.Data = []byte(parts[2])
		}
		found = append(found, entry)
	}
	return found
}

func bit(value bool) string {
	if value {
		return "1"
	}
	return "0"
}

func messageText(m pb.Message) string {
	name, known := names[m.Type]
	if !known {
		panic("a message of kind " + m.Type.String())
	}
	if m.Type == pb.MsgSnap {
		m.Index, m.LogTerm = m.Snapshot.Metadata.Index, m.Snapshot.Metadata.Term
	}
	return fmt.Sprintf("%s %d %d %d %d %d %d %d %s %s %s", name, m.From, m.To, m.Term, m.Index, m.LogTerm, m.Commit,
		m.RejectHint, bit(m.Reject), bit(string(m.Context) == forced), entriesText(m.Entries))
}

func parseMessage(words []string) pb.Message {
	index := number(words[4])
	m := pb.Message{Type: kinds[words[0]], From: number(words[1]), To: number(words[2]), Term: number(words[3]),
		Index: index, LogTerm: number(words[5]), Commit: number(words[6]), RejectHint: number(words[7]),
		Reject: words[8] == "1"}
	if m.Type == pb.MsgSnap {
		m.Snapshot.Metadata = pb.SnapshotMetadata{Index: m.Index, Term: m.LogTerm,
			ConfState: parseMembers(index, words[10]).state()}
		return m
	}
	m.Entries = parseEntries(words[10], index)
	if words[9] == "1" {
		m.Context = []byte(forced)
	}
	return m
}

func (r *replica) logText() string {
	first, err := r.disk.FirstIndex()
	demand(err)
	last, err := r.disk.LastIndex()
	demand(err)
	term, err := r.disk.Term(first - 1)
	demand(err)
	var entries []pb.Entry
	if first <= last {
		entries, err = r.disk.Entries(first, last+1, 1<<40)
		demand(err)
	}
	return fmt.Sprintf("%d.%d;%s", first-1, term, entriesText(entries))
}

func (r *replica) text(taken bool) string {
	status := r.node.Status()
	var progress []string
	if status.RaftState == raft.StateLeader {
		for other := uint64(1); other < 16; other++ {
			if one, there := status.Progress[other]; there && other != r.number {
				progress = append(progress, fmt.Sprintf("%d:%d:%s", other, one.Match, bit(one.RecentActive)))
			}
		}
	}
	log := "="
	if r.changed {
		log = r.logText()
	}
	found := []string{bit(taken), fmt.Sprintf("%s %d %d %d %d %d", roles[status.RaftState], status.Term, status.Vote,
		status.Lead, status.Commit, status.LeadTransferee), membersText(status.Config.Voters[0], status.Config.Learners),
		strings.Join(progress, ","), log}
	for _, m := range r.messages {
		found = append(found, messageText(m))
	}
	return strings.Join(found, "|")
}

// Of the configuration that etcd/raft has, not of what the driver thinks that it has.
func membersText(voters, learners map[uint64]struct{}) string {
	list := func(set map[uint64]struct{}) string {
		var words []string
		for one := uint64(1); one < 16; one++ {
			if _, there := set[one]; there {
				words = append(words, strconv.FormatUint(one, 10))
			}
		}
		return strings.Join(words, "+")
	}
	return list(voters) + "/" + list(learners)
}

// ---------------------------------------------------------------- the group

type silent struct{}

func (silent) Debug(...interface{})              {}
func (silent) Debugf(string, ...interface{})     {}
func (silent) Error(...interface{})              {}
func (silent) Errorf(string, ...interface{})     {}
func (silent) Info(...interface{})               {}
func (silent) Infof(string, ...interface{})      {}
func (silent) Warning(...interface{})            {}
func (silent) Warningf(string, ...interface{})   {}
func (silent) Fatal(v ...interface{})            { panic(fmt.Sprint(v...)) }
func (silent) Fatalf(f string, v ...interface{}) { panic(fmt.Sprintf(f, v...)) }
func (silent) Panic(v ...interface{})            { panic(fmt.Sprint(v...)) }
func (silent) Panicf(f string, v ...interface{}) { panic(fmt.Sprintf(f, v...)) }

func newGroup(words []string) map[string]*replica {
	config := raft.Config{ElectionTick: int(number(words[1])), HeartbeatTick: int(number(words[2])),
		MaxInflightMsgs: int(number(words[3])), MaxSizePerMsg: number(words[4]), MaxCommittedSizePerReady: 1 << 40,
		CheckQuorum: true, PreVote: true, DisableProposalForwarding: true, Logger: silent{}}
	found := map[string]*replica{}
	for one := uint64(1); one <= number(words[0]); one++ {
		found[strconv.FormatUint(one, 10)] = newReplica(one, config, parseMembers(0, words[5]))
	}
	return found
}

// Whether what was proposed was taken.
func (r *replica) step(what string, words []string) bool {
	var err error
	switch what {
	case "tick":
		for left := number(words[1]); left > 0; left-- {
			if r.node.BasicStatus().RaftState == raft.StateLeader {
				r.node.Tick()
			} else {
				r.node.TickQuiesced()
			}
		}
	case "campaign":
		demand(r.node.Campaign())
	case "propose":
		entries := make([]pb.Entry, len(words)-1)
		for i, word := range words[1:] {
			entries[i].Data = []byte(word)
		}
		err = r.node.Step(pb.Message{Type: pb.MsgProp, From: r.number, Entries: entries})
	case "change":
		err = r.change(words[1])
	case "transfer":
		r.node.TransferLeader(number(words[1]))
	case "restart":
		r.restart(number(words[1]))
	case "compact":
		r.compact(number(words[1]))
	case "deliver":
		err = r.node.Step(parseMessage(words))
	default:
		panic("no step: " + what)
	}
	if err != nil && err != raft.ErrProposalDropped {
		panic(err)
	}
	r.turn()
	return err == nil
}

func main() {
	for name, kind := range kinds {
		names[kind] = name
	}
	var group map[string]*replica
	in, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	in.Buffer(make([]byte, 1<<16), 1<<24)
	for in.Scan() {
		words := strings.Fields(in.Text())
		what, words := words[0], words[1:]
		answer := ""
		if what == "group" {
			group = newGroup(words)
		} else {
			at := words[0]
			if what == "deliver" {
				at = words[2]
			}
			r := group[at]
			r.messages, r.changed = nil, false
			taken := r.step(what, words)
			answer = r.text(taken)
		}
		out.WriteString(answer)
		out.WriteByte('\n')
		demand(out.Flush())
	}
	demand(in.Err())
}
