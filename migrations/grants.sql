-- The privileges of the roles on the index. Run this as the owner of its tables, any number of
-- times, on the schema of one version, in one transaction. The roles must exist. Privileges that an
-- earlier version of bctl granted are revoked first, which other transactions do not see.

SELECT pg_advisory_xact_lock(1650684012, 3);

-- Replacing triggers locks their tables. Services use these tables in other orders meanwhile, and one
-- of two transactions that wait for each other would fail. So all are locked first, and nobody waits
-- long for this transaction while it waits: it lets go of all of them, and tries again.
DO $$
BEGIN
    FOR attempt IN 1 .. 200 LOOP
        BEGIN
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE filers, shards, snapshots, policies, holds, confirmations IN ACCESS EXCLUSIVE MODE;
            LOCK TABLE brake, leaders, log, packs, walk_tasks IN SHARE ROW EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 200 THEN
                RAISE;
            END IF;
            PERFORM pg_sleep(0.1 * random());
        END;
    END LOOP;
    SET LOCAL lock_timeout = 0;
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, "{name}_committer", "{name}_walker", "{name}_reader", "{name}_operator", "{name}_pruner", "{name}_scrubber", "{name}_restorer", "{name}_monitor";
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, "{name}_committer", "{name}_walker", "{name}_reader", "{name}_operator", "{name}_pruner", "{name}_scrubber", "{name}_restorer", "{name}_monitor";

{grants}

-- A role that begins a snapshot writes its row and its root task. A privilege cannot restrict rows
-- to those of a snapshot's begin. Without this trigger, a role that may begin snapshots could write
-- one that is committed already, or complete before it is walked.
CREATE OR REPLACE FUNCTION bctl_check_begin() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    IF NEW.state <> 'running' OR NEW.committed IS NOT NULL OR NEW.ended IS NOT NULL OR NEW.recorded OR NEW.committer <> '' OR NEW.commit_until <> 0
        OR NEW.segment IS NOT NULL OR NEW.segment_parts <> 0 OR NEW.checkpoint OR NEW.pages <> 0 OR NEW.pages_sum IS NOT NULL OR NEW.tasks_announced <> 1
        OR NEW.tasks_settled <> 0 OR NEW.batches_announced <> 0 OR NEW.batches_settled <> 0 OR NEW.files <> 0 OR NEW.problems_stored <> 0 OR NEW.bad <> '' OR NEW.forgotten IS NOT NULL
        OR NEW.number IS DISTINCT FROM (SELECT last_number + 1 FROM public.shards WHERE id = NEW.shard_id AND filer_id = NEW.filer_id)
        OR NEW.base <> coalesce((SELECT number FROM public.snapshots
            WHERE shard_id = NEW.shard_id AND state = 'committed' ORDER BY number DESC LIMIT 1), 0)
        OR NEW.base_id IS DISTINCT FROM (SELECT id FROM public.snapshots
            WHERE shard_id = NEW.shard_id AND state = 'committed' ORDER BY number DESC LIMIT 1)
        OR NEW.root <> (CASE WHEN NEW.new_root THEN '' ELSE coalesce((SELECT CASE WHEN files = 0 AND directories = 1 AND errors = 0 THEN '' ELSE root END
            FROM public.snapshots WHERE shard_id = NEW.shard_id AND state = 'committed' ORDER BY number DESC LIMIT 1), '') END)
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
    SELECT * INTO good FROM public.snapshots WHERE shard_id = NEW.id AND state = 'committed' AND forgotten IS NULL AND bad = '' ORDER BY number DESC LIMIT 1;
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

-- The versions of pages in a range of path keys: whether a snapshot has any, and whether two snapshots
-- have different ones. The conditions are those of pgindex.
CREATE OR REPLACE FUNCTION bctl_has_pages(of_shard bigint, at bigint, range_from bytea, range_to bytea) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, public AS $$
    SELECT EXISTS (SELECT FROM public.pages WHERE shard = of_shard
        AND substring(path_key FROM 1 FOR 1024) >= substring(range_from FROM 1 FOR 1024) AND path_key >= range_from
        AND substring(path_key FROM 1 FOR 1024) <= substring(range_to FROM 1 FOR 1024) AND path_key < range_to
        AND first_snapshot <= at AND (last_snapshot IS NULL OR last_snapshot >= at))
$$;
CREATE OR REPLACE FUNCTION bctl_pages_changed(of_shard bigint, before bigint, after bigint, range_from bytea, range_to bytea) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, public AS $$
    SELECT EXISTS (SELECT FROM public.pages WHERE shard = of_shard
        AND substring(path_key FROM 1 FOR 1024) >= substring(range_from FROM 1 FOR 1024) AND path_key >= range_from
        AND substring(path_key FROM 1 FOR 1024) <= substring(range_to FROM 1 FOR 1024) AND path_key < range_to
        AND first_snapshot > before AND first_snapshot <= after AND (last_snapshot IS NULL OR last_snapshot >= after))
    OR EXISTS (SELECT FROM public.pages WHERE shard = of_shard
        AND substring(path_key FROM 1 FOR 1024) >= substring(range_from FROM 1 FOR 1024) AND path_key >= range_from
        AND substring(path_key FROM 1 FOR 1024) <= substring(range_to FROM 1 FOR 1024) AND path_key < range_to
        AND first_snapshot <= before AND last_snapshot >= before AND last_snapshot < after)
$$;

-- Whether this transaction has added an entry to the log with one of these subjects.
CREATE OR REPLACE FUNCTION bctl_logged(what text, VARIADIC which text[]) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, public AS $$
    SELECT EXISTS (SELECT FROM public.log WHERE subject = ANY (which) AND action = what AND xmin = pg_current_xact_id()::xid)
$$;

-- Whether a hold on a path keeps a snapshot: the snapshot has the path, and the next committed one that
-- is left does not have the same version of it. A directory has pages at its path key. Other entries
-- are in the pages of their directory, which the database cannot read. Whoever forgets the snapshot
-- although these have changed notes in the log that the hold was checked.
CREATE OR REPLACE FUNCTION bctl_held_by_path(of_shard bigint, of_number bigint, of_id uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    hold record;
    next bigint := (SELECT min(number) FROM public.snapshots
        WHERE shard_id = of_shard AND number > of_number AND state = 'committed' AND forgotten IS NULL);
BEGIN
    FOR hold IN SELECT id, path_key, path_end, parent_key, parent_key || '\x00'::bytea AS parent_end FROM public.holds
        WHERE shard = of_shard AND path_key IS NOT NULL
    LOOP
        IF public.bctl_has_pages(of_shard, of_number, hold.path_key, hold.path_end) THEN
            IF next IS NULL OR public.bctl_pages_changed(of_shard, of_number, next, hold.path_key, hold.path_end) THEN
                RETURN true;
            END IF;
        ELSIF public.bctl_has_pages(of_shard, of_number, hold.parent_key, hold.parent_end)
            AND (next IS NULL OR public.bctl_pages_changed(of_shard, of_number, next, hold.parent_key, hold.parent_end)
                OR public.bctl_has_pages(of_shard, next, hold.path_key, hold.path_end))
            AND NOT public.bctl_logged('checked', format('hold %s snapshot %s', hold.id, replace(of_id::text, '-', '')))
        THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- What is forgotten cannot be brought back, so this trigger repeats the conditions of bctl: not what
-- is on hold, being restored, or the base of a running snapshot, and not the last good snapshot of a
-- shard that is backed up.
CREATE OR REPLACE FUNCTION bctl_check_forget() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    IF OLD.forgotten IS NOT NULL OR NEW.forgotten IS NULL OR OLD.state = 'running' OR NOT OLD.recorded
        OR EXISTS (SELECT FROM public.holds WHERE snapshot = OLD.id OR shard = OLD.shard_id AND path_key IS NULL)
        OR OLD.state = 'committed' AND public.bctl_held_by_path(OLD.shard_id, OLD.number, OLD.id)
        OR EXISTS (SELECT FROM public.readings WHERE snapshot = OLD.id AND until > extract(epoch FROM clock_timestamp()) * 1000000)
        OR EXISTS (SELECT FROM public.snapshots WHERE shard_id = OLD.shard_id AND state = 'running' AND base_id = OLD.id)
        OR EXISTS (SELECT FROM public.shards h JOIN public.filers f ON f.id = h.filer_id WHERE h.last_good = OLD.id AND NOT h.retired AND NOT f.retired)
    THEN
        RAISE insufficient_privilege USING MESSAGE = format('%I may not forget snapshot %s: it is kept', current_user, OLD.id);
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER bctl_check_forget BEFORE UPDATE OF forgotten ON snapshots FOR EACH ROW
    WHEN (NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_check_forget();

-- Whoever forgets or marks a snapshot, adds or removes a hold, retires a filer or a shard, or changes a
-- policy adds an entry to the log in the same transaction.
-- The database adds the time and the user, and nobody has the privilege to change an entry.
-- The user is the name in the certificate, without its generation, so that several operators who use
-- one role are told apart. The server cuts it off after 63 bytes.
CREATE OR REPLACE FUNCTION bctl_identity() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT coalesce((SELECT regexp_replace(substr(client_dn, 5), '/[0-9]*$', '') FROM pg_stat_ssl
        WHERE pid = pg_backend_pid() AND client_dn LIKE '/CN=%'), session_user::text)
$$;
CREATE OR REPLACE FUNCTION bctl_stamp_log() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    NEW.login := public.bctl_identity();
    NEW.time := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER bctl_stamp_log BEFORE INSERT ON log FOR EACH ROW
    WHEN (NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_stamp_log();
CREATE OR REPLACE FUNCTION bctl_stamp_hold() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    NEW.login := public.bctl_identity();
    NEW.since := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER bctl_stamp_hold BEFORE INSERT ON holds FOR EACH ROW
    WHEN (NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_stamp_hold();

-- The second subjects of holds are those of bctl before version 16 of the schema.
CREATE OR REPLACE FUNCTION bctl_check_logged() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    row record := coalesce(NEW, OLD);
    what text;
    which text[];
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'holds' THEN
        what := CASE TG_OP WHEN 'INSERT' THEN 'hold' ELSE 'release' END;
        which := ARRAY[coalesce('shard ' || row.shard, 'snapshot ' || replace(row.snapshot::text, '-', ''))];
        which := ARRAY[format('hold %s %s', row.id, which[1]),
            CASE TG_OP WHEN 'INSERT' THEN regexp_replace(which[1], '^snapshot ', '') ELSE format('hold %s', row.id) END];
    WHEN 'snapshots' THEN
        what := CASE WHEN TG_ARGV[0] = 'forget' THEN 'forget' WHEN row.bad <> '' THEN 'mark-bad' ELSE 'mark-good' END;
        which := ARRAY[replace(row.id::text, '-', '')];
    WHEN 'shards' THEN
        what := 'retire';
        which := ARRAY['shard ' || row.id, 'filer ' || (SELECT name FROM public.filers WHERE id = row.filer_id)];
    WHEN 'filers' THEN
        what := 'retire';
        which := ARRAY['filer ' || row.name];
    END CASE;
    IF NOT public.bctl_logged(what, VARIADIC which) THEN
        RAISE insufficient_privilege USING MESSAGE = format('the log has no entry of this: %s %s', what, which[1]);
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS bctl_check_logged ON snapshots;
CREATE CONSTRAINT TRIGGER bctl_check_logged AFTER UPDATE OF forgotten ON snapshots DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.forgotten IS NOT NULL) EXECUTE FUNCTION bctl_check_logged('forget');
DROP TRIGGER IF EXISTS bctl_check_marked ON snapshots;
CREATE CONSTRAINT TRIGGER bctl_check_marked AFTER UPDATE OF bad ON snapshots DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.bad <> OLD.bad AND NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_check_logged('mark');
DROP TRIGGER IF EXISTS bctl_check_logged ON holds;
CREATE CONSTRAINT TRIGGER bctl_check_logged AFTER INSERT OR DELETE ON holds DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION bctl_check_logged();
DROP TRIGGER IF EXISTS bctl_check_retired ON shards;
CREATE CONSTRAINT TRIGGER bctl_check_retired AFTER UPDATE OF retired ON shards DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.retired AND NOT OLD.retired AND NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_check_logged();
DROP TRIGGER IF EXISTS bctl_check_retired ON filers;
CREATE CONSTRAINT TRIGGER bctl_check_retired AFTER UPDATE OF retired ON filers DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.retired AND NOT OLD.retired AND NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_check_logged();

-- The settings of a policy that decide what is kept are in the log as they were and as they are. The
-- text is that of pgindex.
CREATE OR REPLACE FUNCTION bctl_check_policy() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    was text := 'null';
    was_name text := NULL;
    is_now text := 'null';
    is_name text := NULL;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        was_name := OLD.name;
        was := jsonb_build_object('retention', OLD.retention, 'labels', OLD.labels, 'schedule', OLD.schedule, 'time_zone', OLD.time_zone, 'paused', OLD.paused)::text;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        is_name := NEW.name;
        is_now := jsonb_build_object('retention', NEW.retention, 'labels', NEW.labels, 'schedule', NEW.schedule, 'time_zone', NEW.time_zone, 'paused', NEW.paused)::text;
    END IF;
    IF was <> is_now AND NOT EXISTS (SELECT FROM public.log WHERE subject = 'policy ' || coalesce(is_name, was_name) AND action = 'policy'
        AND reason = format('{"was": %s, "is": %s}', was, is_now) AND xmin = pg_current_xact_id()::xid)
    THEN
        RAISE insufficient_privilege USING MESSAGE = format('the log has no entry of this: policy %s', coalesce(is_name, was_name));
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS bctl_check_policy ON policies;
CREATE CONSTRAINT TRIGGER bctl_check_policy AFTER INSERT OR UPDATE OR DELETE ON policies DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_check_policy();

-- A confirmation is that of the certificate's holder, and in the log.
CREATE OR REPLACE FUNCTION bctl_stamp_confirmation() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    NEW.identity := public.bctl_identity();
    NEW.time := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER bctl_stamp_confirmation BEFORE INSERT ON confirmations FOR EACH ROW EXECUTE FUNCTION bctl_stamp_confirmation();
CREATE OR REPLACE FUNCTION bctl_check_confirmed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM public.log WHERE action = 'confirm' AND subject = 'stop ' || NEW.stop AND login = NEW.identity) THEN
        RAISE insufficient_privilege USING MESSAGE = format('the log has no entry of this: confirm stop %s', NEW.stop);
    END IF;
    RETURN NULL;
END $$;
-- Who rejects a stop is known by the certificate, too.
CREATE OR REPLACE FUNCTION bctl_stamp_rejection() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
BEGIN
    NEW.rejected := public.bctl_identity();
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER bctl_stamp_rejection BEFORE UPDATE OF rejected ON stops FOR EACH ROW
    WHEN (NEW.rejected <> '') EXECUTE FUNCTION bctl_stamp_rejection();
DROP TRIGGER IF EXISTS bctl_check_confirmed ON confirmations;
CREATE CONSTRAINT TRIGGER bctl_check_confirmed AFTER INSERT ON confirmations DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_check_confirmed();

-- Privileges cannot restrict a DELETE to some rows. The owner of the tables is free.
CREATE OR REPLACE FUNCTION bctl_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE insufficient_privilege USING MESSAGE = format('%I may not change this row of %s: %s', current_user, TG_TABLE_NAME, TG_ARGV[0]);
END $$;
CREATE OR REPLACE TRIGGER bctl_check_removed BEFORE DELETE ON snapshots FOR EACH ROW
    WHEN (OLD.forgotten IS NULL AND NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_refuse('the snapshot is not forgotten');
CREATE OR REPLACE TRIGGER bctl_check_dropped BEFORE DELETE ON packs FOR EACH ROW
    WHEN ((NOT OLD.condemned OR OLD.deleted = 0) AND NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_refuse('the pack is not to be deleted');
CREATE OR REPLACE TRIGGER bctl_check_closed BEFORE UPDATE OF state ON snapshots FOR EACH ROW
    WHEN (NOT (pg_has_role('{name}_committer', 'USAGE') OR pg_has_role('{name}_admin', 'USAGE'))
        AND (NEW.state <> 'deleting' OR OLD.state <> 'committed' OR OLD.forgotten IS NULL)) EXECUTE FUNCTION bctl_refuse('only a forgotten snapshot is closed');

-- Where two operators must confirm, one alone may not loosen the brake.
CREATE OR REPLACE TRIGGER bctl_check_brake BEFORE UPDATE OF snapshots, min_snapshots, bytes, min_bytes ON brake FOR EACH ROW
    WHEN (OLD.operators > 1 AND NOT pg_has_role('{name}_admin', 'USAGE')) EXECUTE FUNCTION bctl_refuse('several operators must confirm, so only the admin changes it');

-- The pruner and the scrubber lead, but not in the place of a committer or of each other.
CREATE OR REPLACE TRIGGER bctl_check_lead BEFORE INSERT OR UPDATE ON leaders FOR EACH ROW
    WHEN (NOT (NEW.role = 'pruner' AND pg_has_role('{name}_pruner', 'USAGE') OR NEW.role = 'scrubber' AND pg_has_role('{name}_scrubber', 'USAGE')
        OR pg_has_role('{name}_committer', 'USAGE') OR pg_has_role('{name}_admin', 'USAGE')))
    EXECUTE FUNCTION bctl_refuse('each role leads as itself only');
