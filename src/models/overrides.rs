//! What a caller of a load may change in a model's manifest.

use super::{
    Manifest,
    manifest::Versions,
    powers_of_two,
    triton::{self, Queueing},
};
use crate::engine::onnx::gpu::CudaGraph;
use serde_json::{Map, Value};
use std::{collections::BTreeSet, fmt, time::Duration};

/// What a caller may change in a manifest while the model stays loaded. A `None` or an empty field leaves what the manifest says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// Items in the largest batch, 1 to 1024.
    pub items_max: Option<usize>,
    /// Preferred batch sizes, in place of those preferred until now. Batches are padded to these and to the usual sizes.
    pub sizes: Option<Vec<usize>>,
    /// Whether the caller asks for dynamic batching.
    pub merges: bool,
    /// How long a batch may wait for further requests, at most 10 s.
    pub wait_max: Option<Duration>,
    /// Instances per device, 1 to 64.
    pub instances: Option<usize>,
    /// How requests wait.
    pub queue: Option<Queueing>,
    /// Which versions are served.
    pub versions: Option<Versions>,
    /// The members of `optimization`, in the form in which the configuration is reported.
    pub optimization: Map<String, Value>,
    /// Members that have no effect here, by name, for the log.
    pub notes: Vec<String>,
    /// The kind of its devices (`KIND_…`). A caller can repeat it, not change it.
    pub kind: Option<String>,
    /// The numbers of its GPUs. These, too, can only be repeated.
    pub gpus: Option<BTreeSet<i32>>,
    /// Other members, by their names in configurations, for a model that is not being served. They can only be repeated too;
    /// [`check_repeated`](Overrides::check_repeated) compares them once the model is loaded.
    pub repeated: Map<String, Value>,
}

impl Overrides {
    /// Applies the changes to a manifest as it lies in the folder. Repeating what the manifest says changes nothing.
    /// `may_use_gpu` is the model's [field](super::Model::may_use_gpu).
    ///
    /// # Errors
    /// The member that contradicts the rest of the manifest, by its name in configurations. Part of the manifest may have been
    /// changed by then.
    pub fn apply(&self, manifest: &mut Manifest, may_use_gpu: bool) -> Result<(), String> {
        // Not here: `repeated`, which the manifest alone cannot confirm, and `versions`, which the scan that read this manifest
        // has applied.
        let Overrides { items_max, sizes, wait_max, instances, queue, kind, gpus, optimization, .. } = self;
        let batch = &mut manifest.batch;
        batch.merges |= self.merges;
        if let Some(largest) = items_max.filter(|largest| *largest != batch.largest()) {
            batch.items_max = Some(largest);
            batch.sizes = None;
        }
        // In Protocol Buffers' JSON, an empty list means that no size is preferred.
        if manifest.declared.is_some() && sizes.as_ref().is_some_and(Vec::is_empty) {
            batch.sizes = None;
        }
        if let Some(preferred) = sizes.as_ref().filter(|preferred| !preferred.is_empty()) {
            let largest = batch.largest();
            let now = batch.sizes.clone().unwrap_or_else(|| powers_of_two(largest));
            // A Triton configuration has the usual sizes and the preferred ones, no others.
            let usual = if manifest.declared.is_some() { powers_of_two(largest) } else { now.clone() };
            let sizes = triton::preferring(usual, preferred, largest)?;
            // A caller that sends a reported configuration back names all current sizes.
            if *preferred != now {
                batch.sizes = Some(sizes);
            }
        }
        batch.wait_max = wait_max.unwrap_or(batch.wait_max);
        let placement = &mut manifest.placement;
        let differs = |member: &str, said: &dyn fmt::Debug, now: &str| {
            format!(
                "instance_group.{member} is {said:?}, and cannot be changed while the server runs: it is {now}"
            )
        };
        let kinds = triton::kinds(placement, may_use_gpu);
        if let Some(kind) = kind.as_deref().filter(|kind| !kinds.contains(kind)) {
            let now: Vec<String> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
            return Err(differs("kind", &kind, &now.join(" or ")));
        }
        // A caller may repeat the GPUs as reported, or as the folder has them.
        let (told, now) = (triton::told_placement(placement, may_use_gpu).1, triton::gpus(placement));
        let other = |gpus: &&BTreeSet<i32>| {
            [&told, &now].into_iter().all(|same| **gpus != same.iter().copied().collect())
        };
        if let Some(gpus) = gpus.as_ref().filter(other) {
            return Err(differs("gpus", &gpus.iter().collect::<Vec<_>>(), &format!("{told:?}")));
        }
        placement.instances = instances.unwrap_or(placement.instances);
        if let Some(queue) = queue {
            (manifest.queue, manifest.priority) = queue.over(&manifest.queue, manifest.priority)?;
        }
        manifest.kept.optimization.extend(optimization.clone());
        // A `model.toml` can ask for more (`Always`) than this configuration can express; keep that.
        let cuda_graph = &mut manifest.gpu.cuda_graph;
        match triton::cuda_graph(optimization) {
            Some(CudaGraph::Auto) if *cuda_graph == CudaGraph::Always => {}
            said => *cuda_graph = said.unwrap_or(*cuda_graph),
        }
        Ok(())
    }

    /// Checks that members which can only be repeated agree with `config`, the configuration of the model that was loaded.
    ///
    /// # Errors
    /// The first member that differs, by name.
    pub fn check_repeated(&self, config: &Value) -> Result<(), String> {
        let other = |(member, said): &(&String, &Value)| !triton::says_as(member, said, &config[*member]);
        let Some((member, _)) = self.repeated.iter().find(other) else { return Ok(()) };
        if member == "max_batch_size" {
            return Err(format!(
                "config: {member:?} is 0, as of a model that does not batch, and this one does: leave it out"
            ));
        }
        Err(format!(
            "config: {member:?} is not as the model has it, and cannot be changed: load it without, and see what GET \
             /v2/models/{}/config says",
            config["name"].as_str().unwrap_or_default()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_graphs_are_those_of_the_load_where_it_says_something_of_them() {
        let after = |folder: &str, said: Value| {
            let mut manifest = Manifest::parse(folder).expect("fine");
            let config = Map::from_iter([(triton::OPTIMIZATION.to_owned(), said)]);
            let overrides = triton::overrides(config, "m", None).expect("a member of configurations");
            overrides.apply(&mut manifest, false).expect("fine");
            manifest.gpu.cuda_graph
        };
        let graphs = |graphs: bool| serde_json::json!({ "cuda": { "graphs": graphs } });
        let always = "[gpu]\ncuda_graph = true";
        let auto = "[gpu]\ncuda_graph = \"auto\"";
        assert_eq!(after("", graphs(true)), CudaGraph::Auto);
        assert_eq!(after(auto, graphs(false)), CudaGraph::Never);
        assert_eq!(after(always, graphs(true)), CudaGraph::Always);
        assert_eq!(after(always, serde_json::json!({ "eager_batching": true })), CudaGraph::Always);
    }

    #[test]
    fn overrides_change_what_they_name_and_leave_the_rest() {
        let manifest =
            || Manifest::parse("priority = 3\n[batch]\nsizes = [1, 4]\nwait_ms_max = 7").expect("fine");
        let changed = |overrides: Overrides| {
            let mut manifest = manifest();
            overrides.apply(&mut manifest, false).map(|()| manifest)
        };
        assert_eq!(changed(Overrides::default()), Ok(manifest()));
        // No sizes are preferred.
        let mut none = Manifest::parse("[batch]\nitems_max = 4").expect("fine");
        Overrides { sizes: Some(Vec::new()), ..Overrides::default() }.apply(&mut none, false).expect("fine");
        assert_eq!(none.batch.sizes, None);
        let larger = changed(Overrides { items_max: Some(12), ..Overrides::default() }).expect("fine");
        assert_eq!((larger.batch.items_max, larger.batch.sizes), (Some(12), None));
        assert_eq!((larger.priority, larger.batch.wait_max), (3, Duration::from_millis(7)));
        let sizes = Some(vec![2, 8]);
        let both =
            changed(Overrides { items_max: Some(16), sizes, instances: Some(2), ..Overrides::default() })
                .expect("fine");
        assert_eq!((both.batch.sizes, both.placement.instances), (Some(vec![1, 2, 4, 8, 16]), 2));
    }

    #[test]
    fn preferred_sizes_are_beside_those_that_there_are_and_never_above_the_largest() {
        let changed = |text: &str, items_max: Option<usize>, sizes: &[usize]| {
            let mut manifest = Manifest::parse(text).expect("fine");
            let sizes = Some(sizes.to_vec());
            Overrides { items_max, sizes, ..Overrides::default() }.apply(&mut manifest, false)?;
            Ok::<_, String>(manifest.batch.sizes)
        };
        // In a Triton configuration, a list that is given replaces its own.
        let described = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 3, 6 ] }";
        let mut manifest = triton::read(described, "m").expect("fine").manifest;
        Overrides { sizes: Some(vec![5]), ..Overrides::default() }.apply(&mut manifest, false).expect("fine");
        assert_eq!(manifest.batch.sizes, Some(vec![1, 2, 4, 5, 8]));
        assert_eq!(changed("", None, &[3]), Ok(Some(vec![1, 2, 3, 4, 8, 16])));
        assert_eq!(changed("", None, &[1, 2, 4, 8, 16]), Ok(None), "they are what it has");
        assert_eq!(changed("[batch]\nsizes = [3, 7]", None, &[5]), Ok(Some(vec![3, 5, 7])));
        assert_eq!(changed("[batch]\nsizes = [3, 7]", Some(4), &[3]), Ok(Some(vec![1, 2, 3, 4])));
        for (items_max, size) in [(Some(4), 1024), (None, 17)] {
            let told = changed("", items_max, &[size]).expect_err("too large");
            assert!(told.contains(&format!("preferred_batch_size holds {size}, allowed: 1 to")), "{told}");
        }
    }

    #[test]
    fn devices_can_be_repeated_and_not_changed() {
        let check_on = |may_use_gpu: bool, text: &str, kind: Option<&str>, gpus: Option<&[i32]>| {
            let (kind, gpus) = (kind.map(str::to_owned), gpus.map(|gpus| gpus.iter().copied().collect()));
            let mut manifest = Manifest::parse(text).expect("fine");
            Overrides { kind, gpus, ..Overrides::default() }.apply(&mut manifest, may_use_gpu)
        };
        let check = |text: &str, kind: Option<&str>, gpus: Option<&[i32]>| check_on(true, text, kind, gpus);
        let two = "[placement]\ndevices = [\"gpu:0\", \"gpu:10\", \"gpu:2\"]";
        assert_eq!(check("", Some("KIND_AUTO"), Some(&[])), Ok(()));
        assert_eq!(check(two, Some("KIND_GPU"), Some(&[10, 2, 0])), Ok(()));
        assert_eq!(check("[placement]\ndevices = \"cpu\"", Some("KIND_CPU"), None), Ok(()));
        // For an automatic placement, what it resolves to.
        assert_eq!(check("", Some("KIND_GPU"), Some(&[])), Ok(()));
        assert_eq!(check_on(false, "", Some("KIND_CPU"), Some(&[])), Ok(()));
        assert_eq!(check_on(false, "", Some("KIND_AUTO"), None), Ok(()));
        let refused = check_on(false, "", Some("KIND_GPU"), None).expect_err("there is no GPU");
        assert!(refused.ends_with("it is \"KIND_CPU\" or \"KIND_AUTO\""), "{refused}");
        let both = "[placement]\ndevices = [\"cpu\", \"gpu:1\"]";
        assert_eq!(check(both, Some("KIND_GPU"), Some(&[1])), Ok(()));
        assert_eq!(check_on(false, both, Some("KIND_CPU"), Some(&[])), Ok(()));
        assert_eq!(check_on(false, both, Some("KIND_AUTO"), Some(&[1])), Ok(()));
        for (text, kind, gpus, told) in [
            ("", Some("KIND_CPU"), None, "instance_group.kind is \"KIND_CPU\""),
            ("", Some("KIND_MODEL"), None, "it is \"KIND_GPU\" or \"KIND_AUTO\""),
            ("", None, Some(&[0][..]), "instance_group.gpus is [0], and cannot be changed"),
            (two, Some("KIND_AUTO"), None, "it is \"KIND_GPU\""),
            (two, Some("KIND_GPU"), Some(&[]), "it is [0, 10, 2]"),
            (both, Some("KIND_GPU"), Some(&[]), "it is [1]"),
        ] {
            let why = check(text, kind, gpus).expect_err("another device");
            assert!(why.contains(told), "{why} lacks {told}");
        }
    }
}
