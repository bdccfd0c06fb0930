// Package entindex is the common part of pgindex and sqliteindex: all of index.Index, over a
// Backend. A Backend provides transactions, and does the bulk work on the hot tables (pages,
// chunks) in its own SQL dialect. The small tables (filers, shards, snapshots) belong to ent. The
// others (open work, packs, policies, leaders and so on) are used with SQL that both databases run;
// Dialect.sql fills in what differs (docs/decisions/0025-what-ent-atlas-and-goose-own.md).
//
// # Rows are states
//
//	walk_tasks, read_batches   A row is open work. Settling it deletes the row, so late
//	                           results find nothing. If lease_until is in the past (1970
//	                           if the work was never assigned), the work can be claimed.
//	                           Until then worker and path name its holder (empty: the work
//	                           is in a queue), and stalled is the time since which that
//	                           worker waits for its filer.
//	slice_parts                Parts of a result whose last part has not arrived.
//	snapshots                  The state, and counters of announced and settled work (I4).
//	shards                     due is 0 if the scheduler has to plan the shard: after the
//	                           end of a snapshot and after a change of policy.
//	packs                      Registered packs, condemned or not.
//	chunks, chunk_copies       The first place of each chunk, and further ones. A chunk that
//	                           has copies has a first place.
//	chunk_lists                The references of list chunks. If a list is lost, the store does
//	                           not have it any more, and its references stay known.
//	reread_pages               Pages whose files the next snapshot reads again.
//	stops, confirmations       The deletions that the brake has stopped, and their
//	                           confirmations. The row of a stop is never changed, except to
//	                           record its rejection.
//	pages                      Versions of pages. The listing of a version is stored as it is,
//	                           or as a patch of the version of the same page that began with
//	                           snapshot base, which is no patch of another one. Readers get
//	                           the listing in either case.
//	name_blocks                Names that the versions of pages have or had, for EachName
//	                           (package names). name_groups has their numbers. The shards in
//	                           names_incomplete have versions with other names, too.
//	interrupted_pages          Pages that are left from failed snapshots, until a commit of
//	                           the shard.
//
// # Apply
//
// Apply is one transaction. In this order, it
//
//   - validates the results in memory;
//   - locks the snapshots, by id;
//   - registers the packs and their chunks, then the lists;
//   - reads the open work;
//   - locks the packs that batches rely on, by id, and finds out which lists are known;
//   - judges each result in memory, in the order of the call;
//   - writes in bulk.
//
// A result is refused before anything of it is written, so that the results of one call do not
// affect each other.
//
// apply.go has the order, and judges the results. packs.go and lists.go register what readers have
// stored. write.go writes. HotWriter (backend.go) is implemented by hot_write.go of pgindex and
// sqliteindex; PutPages ends the open version of a changed page, and inserts the new one.
// snapshots.go begins, commits and fails snapshots.
//
// Locks are always taken in the order leader, filer, shard, snapshots, packs, chunks, copies,
// lists, work, and in each table by key. The exception is the state of a shard, which Commit and
// Fail write after they have locked the snapshot. No transaction that holds a shard waits for that
// snapshot. Statements that claim and extend work skip locked rows, so they wait for nothing, with
// one exception: a claim waits for the previous claim of its kind, because the counts of that
// claim must stay true. If two transactions still wait for each other (two calls that register the
// same packs), the database aborts one, and Update runs it again.
//
// # What a crash leaves
//
// Apply, Commit, Fail and BeginSnapshot do everything or nothing. The parts of a result whose last
// part never comes stay until the task is settled or the snapshot ends. "When something fails" in
// docs/architecture.md describes the rest.
//
// # Files
//
//	index.go       opens the index, and describes its repository
//	backend.go     the port to Postgres and SQLite: transactions, dialects, and the tables with most
//	               rows
//	driver.go      ent over a transaction of a Backend
//	statements.go  writes SQL for both dialects
//	queries.go     reads rows of entities, and locks them
//	catalog.go     converts between rows and the nouns of package backup
//	counts.go      adds counts without overflow
//	filers.go      adds, changes, lists and retires filers
//	shards.go      the same for shards
//	policies.go    stores policies
//	scheduling.go  binds policies, and plans what is due
//	lead.go        elects leaders; stores the loads of filers
//	snapshots.go   begins, commits and fails snapshots
//	cancel.go      requests the end of a snapshot
//	bad.go         marks snapshots as bad, and finds the last good one
//	work.go        the tables of open work
//	codec.go       encodes the columns of open work
//	claims.go      claims tasks and batches
//	shares.go      distributes a claim over sites and filers
//	leases.go      extends and ends leases
//	apply.go       applies results, in one transaction
//	validate.go    refuses results that no worker sends
//	packs.go       registers packs and chunks, and locks the packs that batches rely on
//	lists.go       registers what list chunks refer to
//	write.go       writes what an application has decided
//	patches.go     stores a listing as a patch
//	names.go       stores the names that pages bring, and reads them
//	collectnames.go  collects names from the pages
//	purgenames.go  removes the names of a purged path
//	pages.go       reads pages, and searches them
//	locate.go      finds chunks
//	journal.go     the changes of a snapshot, and what a committer needs to commit it
//	forget.go      forgets snapshots; readings, and the log of operators
//	holds.go       adds, removes and lists holds
//	heldpaths.go   finds the snapshots that holds on paths keep
//	brake.go       stops large deletions
//	prune.go       finds what no snapshot needs, and deletes packs
//	drop.go        deletes the versions of pages that no snapshot needs
//	needed.go      finds the versions of pages that snapshots need
//	prunework.go   reports what there is to prune
//	churn.go       notes alarms, and puts shards on hold
//	checking.go    reads what is checked for damage
//	move.go        replaces packs by their thinned copies
//	locks.go       until when objects are locked in the store
//	sweep.go       recognizes objects of the store
//	comparing.go   shows whether the index is older than its store
//	purge.go       removes a path from all snapshots of a shard
//	purgepage.go   the same for one page
//	purges.go      the jobs of purging
//	parity.go      knows parity groups
//	repair.go      notes what the store has lost
//	lost.go        packs that the store has lost, and that a repair may take back
//	scrub.go       notes what is proven of packs, and returns those that are due
//	scrubparts.go  does the same for the slices of the journal, and for parity groups
//	restores.go    the restores that restorers share
//	drills.go      the reports of drills
//	versions.go    writes versions of pages anew
//	recover.go     stores what a rebuild has found in the store
//	recoverpacks.go  registers packs that it has found
//	recoverpages.go  prepares and applies the changes of its segments
package entindex
