// Package retention decides which snapshots of a shard are kept, and which are forgotten. It is
// pure: it takes rules, snapshots and times, and returns decisions with their reasons. It reads no
// clock and deletes nothing.
//
// # The rules of restic
//
// The decisions are those of restic 0.19.1 (doc/060_forget.rst, internal/data/snapshot_policy.go),
// and the tests compare both. Snapshots are examined from the newest to the oldest. A snapshot is
// kept if any rule keeps it. The rules do not affect each other.
//
//   - keep-last N keeps the newest N.
//   - keep-hourly N keeps the newest snapshot of each of the last N hours that have any, and
//     likewise the rules of days, ISO weeks, months and years. These are hours, days … of the
//     calendar. They are not counted back from now, and those without a snapshot do not count.
//   - A rule that has counts left when the oldest snapshot is reached keeps that one too, although
//     another one of the same hour, day … is kept. So a history that is shorter than the rule asks
//     for is kept from its beginning.
//   - keep-within P keeps the snapshots that are newer than the newest one minus P. The newest one
//     is the reference, not the time of the decision: if backups stop, nothing is forgotten. Its
//     variants keep the newest of each hour, day … of this period, and the oldest snapshot if it is
//     in the period.
//   - keep-tag keeps the snapshots that have all tags of one of its lists.
//
// # The rules of Proxmox Backup Server
//
// With the style pbs the rules are applied one after the other, from keep-last to keep-yearly
// (pbs-datastore/src/prune.rs). A rule skips each hour, day … of which an earlier rule keeps a
// snapshot, and does not count it. It keeps the newest snapshot of each of the next N, and the
// others of these N are forgotten; later rules cannot keep them. There is no rule of periods or
// tags.
//
// # Snapshots that rules do not count or forget
//
// Rules count good snapshots only. A snapshot that has failed is kept until a good one is newer by
// seven days. A snapshot that is marked as bad is kept at least as long, and as long as the rules
// would keep it if it were good.
//
// A hold keeps its snapshot against the rules. With the rules of restic, it does not change the
// fates of other snapshots. The rules of Proxmox Backup Server do not count snapshots on hold, so
// that other snapshots take their places. The base of a running snapshot is kept. The
// last good snapshot is kept, unless the shard is retired.
//
// # Ties
//
// Snapshots of the same time are ordered by their ids, the greatest first, so that the order of the
// input does not matter. restic leaves this order to chance.
//
// # Time zones
//
// restic uses the time zone of each snapshot, which is that of the machine that made it. Here one
// time zone holds for all snapshots. The default is UTC. On the day on which clocks go back, the
// repeated hour is one hour.
package retention
