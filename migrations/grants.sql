-- The privileges of the roles on the index. Run this as the owner of its tables, any number of
-- times, on the schema of one version, in one transaction. The roles must exist. Privileges that an
-- earlier version of bctl granted are revoked first, which other transactions do not see.

SELECT pg_advisory_xact_lock(1650684012, 3);

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, "{name}_committer", "{name}_walker", "{name}_reader", "{name}_operator", "{name}_monitor";
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, "{name}_committer", "{name}_walker", "{name}_reader", "{name}_operator", "{name}_monitor";

{grants}

-- A role that begins a snapshot writes its row and its root task. A privilege cannot restrict rows
-- to those of a snapshot's begin. Without this trigger, a role that may begin snapshots could write
-- one that is committed already, or complete before it is walked.
CREATE OR REPLACE FUNCTION bctl_check_begin() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    IF NEW.state <> 'running' OR NEW.committed IS NOT NULL OR NEW.ended IS NOT NULL OR NEW.recorded OR NEW.committer <> '' OR NEW.commit_until <> 0
        OR NEW.segment IS NOT NULL OR NEW.segment_parts <> 0 OR NEW.checkpoint OR NEW.pages <> 0 OR NEW.pages_sum IS NOT NULL OR NEW.tasks_announced <> 1
        OR NEW.tasks_settled <> 0 OR NEW.batches_announced <> 0 OR NEW.batches_settled <> 0 OR NEW.files <> 0 OR NEW.problems_stored <> 0 OR NEW.bad <> ''
        OR NEW.number IS DISTINCT FROM (SELECT last_number + 1 FROM public.shards WHERE id = NEW.shard_id AND filer_id = NEW.filer_id)
        OR NEW.base <> coalesce((SELECT number FROM public.snapshots
            WHERE shard_id = NEW.shard_id AND state = 'committed' ORDER BY number DESC LIMIT 1), 0)
        OR NEW.base_id IS DISTINCT FROM (SELECT id FROM public.snapshots
            WHERE shard_id = NEW.shard_id AND state = 'committed' ORDER BY number DESC LIMIT 1)
        OR NEW.root <> (CASE WHEN NEW.new_root THEN '' ELSE coalesce((SELECT root FROM public.snapshots
            WHERE shard_id = NEW.shard_id AND state = 'committed' ORDER BY number DESC LIMIT 1), '') END)
        OR NEW.sort_time <> greatest(NEW.started, (SELECT sort_time FROM public.snapshots
            WHERE shard_id = NEW.shard_id ORDER BY number DESC LIMIT 1))
    THEN
        RAISE insufficient_privilege USING MESSAGE = format('%I may begin snapshots, and write nothing else of them', current_user);
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION bctl_check_root() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    IF NEW.generation <> 0 OR NEW.attempt <> 0 OR NEW.directories <> '\x01010000' OR NOT EXISTS (
        SELECT FROM public.snapshots WHERE id = NEW.snapshot_id AND filer_id = NEW.filer_id AND state = 'running'
            AND tasks_announced = 1 AND tasks_settled = 0)
        OR EXISTS (SELECT FROM public.walk_tasks WHERE snapshot_id = NEW.snapshot_id)
    THEN
        RAISE insufficient_privilege USING MESSAGE = format('%I may add the root task of a snapshot, and no other', current_user);
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER bctl_check_begin BEFORE INSERT ON snapshots FOR EACH ROW
    WHEN (NOT (pg_has_role('{name}_committer', 'USAGE') OR pg_has_role('{name}_admin', 'USAGE'))) EXECUTE FUNCTION bctl_check_begin();
CREATE OR REPLACE TRIGGER bctl_check_root BEFORE INSERT ON walk_tasks FOR EACH ROW
    WHEN (NOT (pg_has_role('{name}_committer', 'USAGE') OR pg_has_role('{name}_admin', 'USAGE'))) EXECUTE FUNCTION bctl_check_root();

-- Marking a snapshot as bad may change the shard's last good snapshot. This trigger allows only the
-- newest one that remains good, and no other choice.
CREATE OR REPLACE FUNCTION bctl_check_good() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE good public.snapshots;
BEGIN
    SELECT * INTO good FROM public.snapshots WHERE shard_id = NEW.id AND state = 'committed' AND bad = '' ORDER BY number DESC LIMIT 1;
    IF NEW.last_good IS DISTINCT FROM good.id OR NEW.last_good_started IS DISTINCT FROM good.started
        OR NEW.last_good_number <> coalesce(good.number, 0) OR NEW.last_good_files <> coalesce(good.files, 0) OR NEW.last_good_bytes <> coalesce(good.bytes, 0)
    THEN
        RAISE insufficient_privilege USING MESSAGE = format('%I may not choose the last good snapshot of a shard', current_user);
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER bctl_check_good BEFORE UPDATE OF last_good, last_good_number, last_good_started, last_good_files, last_good_bytes ON shards FOR EACH ROW
    WHEN (NOT (pg_has_role('{name}_committer', 'USAGE') OR pg_has_role('{name}_admin', 'USAGE'))) EXECUTE FUNCTION bctl_check_good();

-- Page versions are identified by snapshot numbers. A reused number would claim another snapshot's
-- pages, so numbers never decrease.
CREATE OR REPLACE FUNCTION bctl_keep_numbers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE check_violation USING MESSAGE = format('numbers of snapshots of shard %s only grow', OLD.id);
END $$;
CREATE OR REPLACE TRIGGER bctl_keep_numbers BEFORE UPDATE OF last_number ON shards FOR EACH ROW
    WHEN (NEW.last_number < OLD.last_number) EXECUTE FUNCTION bctl_keep_numbers();
